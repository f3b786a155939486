import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * Peers of the benchmark: the same copy, exactly once, by plain clients and by Kafka Streams.
 *
 * <p>Arguments: {@code clients|streams}, bootstrap servers, source, sink, records, jobs. A line is printed as each
 * job ends. Both read the whole topic in each job, on two threads, and change every value.
 */
public final class Copy {
    private static final int THREADS = 2;
    private static final byte[] MARK = "!".getBytes(StandardCharsets.UTF_8);

    private Copy() {}

    public static void main(String[] arguments) throws Exception {
        int jobs = Integer.parseInt(arguments[5]);
        for (int job = 0; job < jobs; job++) {
            if (arguments[0].equals("clients")) {
                clients(arguments[1], arguments[2], arguments[3]);
            } else {
                streams(arguments[1], arguments[2], arguments[3], Long.parseLong(arguments[4]));
            }
            System.out.println("{\"job\": " + (job + 1) + "}");
        }
    }

    private static byte[] changed(byte[] value) {
        byte[] longer = Arrays.copyOf(value, value.length + MARK.length);
        System.arraycopy(MARK, 0, longer, value.length, MARK.length);
        return longer;
    }

    /** Two clients share the partitions; each commits its copied records and offsets in one transaction. */
    private static void clients(String servers, String source, String sink) throws Exception {
        String group = "clients-" + UUID.randomUUID();
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        List<Future<Void>> all = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            int number = thread;
            Callable<Void> copy = () -> copyShare(servers, source, sink, group, number);
            all.add(pool.submit(copy));
        }
        for (Future<Void> share : all) {
            share.get();
        }
        pool.shutdown();
    }

    private static Void copyShare(String servers, String source, String sink, String group, int number) {
        Map<String, Object> reading = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", group));
        reading.putAll(Map.of("isolation.level", "read_committed", "enable.auto.commit", false));
        reading.putAll(Map.of("max.poll.records", 10000, "max.partition.fetch.bytes", 8 << 20));
        Map<String, Object> writing = new HashMap<>(Map.of("bootstrap.servers", servers, "acks", "all"));
        writing.putAll(Map.of("compression.type", "zstd", "compression.zstd.level", 1));
        writing.putAll(Map.of("linger.ms", 20, "batch.size", 262144));
        writing.putAll(Map.of("transactional.id", group + "-" + number, "transaction.timeout.ms", 300000));
        try (KafkaConsumer<byte[], byte[]> consumer =
                        new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(source).stream()
                    .filter(info -> info.partition() % THREADS == number)
                    .map(info -> new TopicPartition(source, info.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            producer.initTransactions();
            producer.beginTransaction();
            while (partitions.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    producer.send(new ProducerRecord<>(sink, record.key(), changed(record.value())));
                }
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            ends.forEach((tp, end) -> offsets.put(tp, new OffsetAndMetadata(end)));
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        }
        return null;
    }

    /**
     * Kafka Streams with exactly_once_v2; the job ends when all records are committed. After a rebalance that
     * aborts a transaction, records are seen twice: the rest is then copied by another instance.
     */
    private static void streams(String servers, String source, String sink, long records) throws Exception {
        String application = "streams-" + UUID.randomUUID();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (long left = records; left > 0; left = records - committed(admin, application)) {
                copyByStreams(application, servers, source, sink, left);
            }
        }
    }

    private static long committed(Admin admin, String group) throws Exception {
        Collection<OffsetAndMetadata> offsets = admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()
                .get()
                .values();
        return offsets.stream().mapToLong(OffsetAndMetadata::offset).sum();
    }

    private static void copyByStreams(String application, String servers, String source, String sink, long records)
            throws Exception {
        Path state = Files.createTempDirectory("streams-");
        Properties settings = new Properties();
        settings.put("application.id", application);
        settings.put("bootstrap.servers", servers);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("num.stream.threads", THREADS);
        settings.put("commit.interval.ms", 1000);
        settings.put("state.dir", state.toString());
        settings.put("replication.factor", 1);
        settings.put("default.key.serde", Serdes.ByteArraySerde.class);
        settings.put("default.value.serde", Serdes.ByteArraySerde.class);
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.max.poll.records", 10000);
        settings.put("consumer.max.partition.fetch.bytes", 8 << 20);
        settings.put("producer.compression.type", "zstd");
        settings.put("producer.compression.zstd.level", 1);
        settings.put("producer.linger.ms", 20);
        settings.put("producer.batch.size", 262144);
        AtomicLong seen = new AtomicLong();
        StreamsBuilder builder = new StreamsBuilder();
        builder.<byte[], byte[]>stream(source)
                .mapValues(value -> {
                    seen.incrementAndGet();
                    return changed(value);
                })
                .to(sink);
        try (KafkaStreams running = new KafkaStreams(builder.build(), settings)) {
            running.start();
            while (seen.get() < records) {
                if (running.state() == KafkaStreams.State.ERROR) {
                    throw new IllegalStateException("Kafka Streams has failed");
                }
                Thread.sleep(5);
            }
            if (!running.close(Duration.ofSeconds(60))) {
                throw new IllegalStateException("Kafka Streams did not close");
            }
        }
    }
}
