import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.UUID;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExecutionOptions;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Flink as a peer of the benchmark: the same copy, exactly once, on a mini cluster that all jobs share.
 *
 * <p>Arguments as in {@code Copy}. A bounded source reads the whole topic in each job, on two slots; records go
 * from operator to operator without being copied. The sink commits its transactions with checkpoints, the last of which
 * follows the last record; then the job ends. (In batch mode, which commits at the end only, it took longer.)
 */
public final class FlinkCopy {
    private static final int SLOTS = 2;
    private static final byte[] MARK = "!".getBytes(StandardCharsets.UTF_8);
    private static final TypeInformation<Tuple2<byte[], byte[]>> PAIR = new TupleTypeInfo<>(
            PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO,
            PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);

    private FlinkCopy() {}

    public static void main(String[] arguments) throws Exception {
        int jobs = Integer.parseInt(arguments[5]);
        MiniClusterConfiguration size = new MiniClusterConfiguration.Builder()
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(SLOTS)
                .setConfiguration(new Configuration())
                .build();
        try (MiniCluster cluster = new MiniCluster(size)) {
            cluster.start();
            for (int job = 0; job < jobs; job++) {
                StreamExecutionEnvironment environment = new StreamExecutionEnvironment(settings());
                copy(environment, arguments[1], arguments[2], arguments[3]);
                JobID submitted = cluster.submitJob(environment.getStreamGraph()).get().getJobID();
                cluster.requestJobResult(submitted).get().toJobExecutionResult(FlinkCopy.class.getClassLoader());
                System.out.println("{\"job\": " + (job + 1) + "}");
            }
        }
        System.exit(0);
    }

    private static Configuration settings() {
        Configuration settings = new Configuration();
        settings.set(PipelineOptions.OBJECT_REUSE, true);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(ExecutionOptions.RUNTIME_MODE, RuntimeExecutionMode.STREAMING);
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        return settings;
    }

    private static void copy(StreamExecutionEnvironment environment, String servers, String source, String sink) {
        String name = "flink-" + UUID.randomUUID();
        KafkaSource<Tuple2<byte[], byte[]>> reading = KafkaSource.<Tuple2<byte[], byte[]>>builder()
                .setBootstrapServers(servers)
                .setTopics(source)
                .setGroupId(name)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setProperty("isolation.level", "read_committed")
                .setProperty("max.poll.records", "10000")
                .setProperty("max.partition.fetch.bytes", String.valueOf(8 << 20))
                .setDeserializer(new Pairs())
                .build();
        KafkaSink<Tuple2<byte[], byte[]>> writing = KafkaSink.<Tuple2<byte[], byte[]>>builder()
                .setBootstrapServers(servers)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(name)
                .setProperty("transaction.timeout.ms", "300000")
                .setProperty("compression.type", "zstd")
                .setProperty("compression.zstd.level", "1")
                .setProperty("linger.ms", "20")
                .setProperty("batch.size", "262144")
                .setRecordSerializer(new Records(sink))
                .build();
        environment.setParallelism(SLOTS);
        environment
                .fromSource(reading, WatermarkStrategy.noWatermarks(), "source", PAIR)
                .map(pair -> Tuple2.of(pair.f0, changed(pair.f1)))
                .returns(PAIR)
                .sinkTo(writing);
    }

    private static byte[] changed(byte[] value) {
        byte[] longer = Arrays.copyOf(value, value.length + MARK.length);
        System.arraycopy(MARK, 0, longer, value.length, MARK.length);
        return longer;
    }

    private static final class Pairs implements KafkaRecordDeserializationSchema<Tuple2<byte[], byte[]>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<byte[], byte[]>> out) {
            out.collect(Tuple2.of(record.key(), record.value()));
        }

        @Override
        public TypeInformation<Tuple2<byte[], byte[]>> getProducedType() {
            return PAIR;
        }
    }

    private static final class Records implements KafkaRecordSerializationSchema<Tuple2<byte[], byte[]>> {
        private final String topic;

        Records(String topic) {
            this.topic = topic;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(
                Tuple2<byte[], byte[]> pair, KafkaSinkContext context, Long timestamp) {
            return new ProducerRecord<>(topic, pair.f0, pair.f1);
        }
    }
}
