"""Java's own classes read what we seal and write what we decode: every codec, no broker."""

from __future__ import annotations

import contextlib
import subprocess

import numpy as np
import pyarrow as pa
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch.compression import Codec
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import ControlType, control_type
from airflow_eos.recordbatch.partitioner import murmur2
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.sink_columns import HEADERS_TYPE
from airflow_eos.recordbatch.stamp import next_sequence, stamp
from airflow_eos_testing import EmbeddedKafka, launch
from airflow_eos_testing.cluster import DEFAULT_VERSION
from airflow_eos_testing.jars import broker_classpath, pyspark_jar
from airflow_eos_testing.java import find_java
from tests.support.compressed_forms import ODD_FORMS
from tests.support.local_runs import Pipeline
from tests.support.record_batches import Record, raw, rows, write

CODECS = [codec.label for codec in Codec]
MOMENT = 1_700_000_000_000
CONTENT = [
    Record(0, MOMENT, b"k", b"v"),
    Record(1, MOMENT + 5, None, None),
    Record(2, MOMENT - 70_000, b"", b""),
    Record(3, MOMENT + 10**9, b"key", b"x" * 100_000, (("a", b"1"), ("a", None), ("ключ", b"\x00"))),
    *(Record(4 + row, MOMENT + row, b"%d" % row, b'{"row": %d}' % row * (row % 9)) for row in range(60)),
]


class Kafka:
    """Java's record classes, in a separate JVM."""

    def __init__(self, jvm, array):
        self.jvm, self.array = jvm, array
        try:
            jvm.java.lang.Class.forName("org.apache.kafka.common.record.internal.MemoryRecords")
            self.record = jvm.org.apache.kafka.common.record.internal
        except Py4JJavaError:  # before 4.2
            self.record = jvm.org.apache.kafka.common.record
        self.utils = jvm.org.apache.kafka.common.utils.Utils

    def read(self, data):
        """Return the only batch of these bytes, after a CRC check."""
        records = self.record.MemoryRecords.readableRecords(self.jvm.java.nio.ByteBuffer.wrap(data))
        batch = records.batches().iterator().next()
        batch.ensureValid()
        return batch

    def rows(self, batch):
        """Return the batch's records."""
        converted, records = [], batch.iterator()
        while records.hasNext():
            record = records.next()
            converted.append(
                Record(
                    record.offset(),
                    record.timestamp(),
                    self.utils.toNullableArray(record.key()),
                    self.utils.toNullableArray(record.value()),
                    tuple((header.key(), header.value()) for header in record.headers()),
                )
            )
        return converted

    def write(self, content, codec):
        """Return a batch of these records."""
        simple = self.array(self.record.SimpleRecord, len(content))
        header = self.jvm.org.apache.kafka.common.header.internals.RecordHeader
        for index, row in enumerate(content):
            headers = self.array(self.jvm.org.apache.kafka.common.header.Header, len(row.headers))
            for place, (key, value) in enumerate(row.headers):
                headers[place] = header(key, value)
            simple[index] = self.record.SimpleRecord(row.timestamp, row.key, row.value, headers)
        compression = self.jvm.org.apache.kafka.common.compress.Compression.of(codec).build()
        return self.bytes(self.record.MemoryRecords.withRecords(compression, simple))

    def bytes(self, records):
        """Return the bytes of a MemoryRecords."""
        return bytes(self.utils.toArray(records.buffer()))


@pytest.fixture(scope="module")
def java():
    compiler = (pyspark_jar("janino-*.jar"), pyspark_jar("commons-compiler-*.jar"))
    classpath = ":".join(str(jar) for jar in (*broker_classpath(DEFAULT_VERSION), *compiler))
    port, token, process = launch_gateway(
        jarpath=str(pyspark_jar("py4j-*.jar")),
        classpath=classpath,
        java_path=str(find_java()),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield Kafka(gateway.jvm, gateway.new_array)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(30)


def sealed(content, codec, batch_bytes=None):
    """Stamped batches of one partition, sequences from 0."""
    sequence = 0
    for batch in seal(
        pa.array([row.value for row in content], pa.binary()),
        np.zeros(len(content), np.int32),
        topic="t",
        key=pa.array([row.key for row in content], pa.binary()),
        timestamp=np.array([row.timestamp for row in content]),
        headers=pa.array([row.headers for row in content], HEADERS_TYPE),
        compressor=codec,
        batch_bytes=batch_bytes,
    ):
        yield batch, stamp(batch.data, 1 << 40, 7, sequence)
        sequence = next_sequence(sequence, batch.records)


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_is_sealed(java, codec):
    """Checksum, identity, attributes, timestamps, records and headers."""
    ((batch, data),) = sealed(CONTENT, codec)
    java_batch = java.read(data)
    assert java.rows(java_batch) == CONTENT
    assert java_batch.isTransactional()
    assert not java_batch.isControlBatch()
    assert (java_batch.producerId(), java_batch.producerEpoch(), java_batch.baseSequence()) == (1 << 40, 7, 0)
    assert java_batch.maxTimestamp() == batch.max_timestamp == MOMENT + 10**9
    assert str(java_batch.compressionType()).lower() == codec
    assert str(java_batch.timestampType()) == "CreateTime"


def test_java_reads_the_sequences_of_consecutive_batches(java):
    """Each batch continues the numbers of the one before."""
    batches = [java.read(data) for _, data in sealed(CONTENT, "zstd", batch_bytes=400)]
    assert len(batches) > 5
    assert [batch.baseSequence() for batch in batches[1:]] == [
        batch.lastSequence() + 1 for batch in batches[:-1]
    ]
    assert batches[-1].lastSequence() == len(CONTENT) - 1
    assert [row[1:] for batch in batches for row in java.rows(batch)] == [row[1:] for row in CONTENT]


@pytest.mark.parametrize("codec", CODECS)
def test_what_java_writes_is_decoded(java, codec):
    """Java's streams: zstd without content size, snappy in xerial frames, lz4 as its own blocks."""
    batch = raw(java.write(CONTENT, codec))
    assert Codec(batch.header.codec).label == codec
    assert rows(decode_batch(batch)) == CONTENT


@pytest.mark.parametrize("form", ODD_FORMS.values(), ids=ODD_FORMS)
def test_what_java_decompresses_is_decompressed(java, form):
    """Padding, joined members, frames and streams: we read everything that the Java client reads."""
    codec, compress = form
    written = write(CONTENT, attributes=codec, compress=compress)
    try:
        expected = java.rows(java.read(written))
    except Py4JJavaError:
        with contextlib.suppress(CorruptBatch):  # librdkafka reads some of them
            assert rows(decode_batch(raw(written))) == CONTENT
    else:
        assert expected == CONTENT
        assert rows(decode_batch(raw(written))) == CONTENT


@pytest.mark.parametrize("kind", ["ABORT", "COMMIT"])
def test_markers_java_writes_are_told_apart(java, kind):
    """End-transaction markers as a coordinator writes them."""
    marker = java.record.EndTransactionMarker(getattr(java.record.ControlRecordType, kind), 5)
    batch = raw(java.bytes(java.record.MemoryRecords.withEndTransactionMarker(42, 3, marker)))
    assert batch.header.is_control
    assert (batch.header.producer_id, batch.header.producer_epoch) == (42, 3)
    assert control_type(batch) is ControlType[kind]


def test_keys_hash_as_in_java(java):
    """Utils.murmur2, at every length to 64 and beyond."""
    generator = np.random.default_rng(11)
    keys = [generator.bytes(length) for length in [*range(65), 1000, 10_001]]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [java.utils.murmur2(key) for key in keys]


@pytest.mark.parametrize(
    ("sequence", "records"), [(0, 7), ((1 << 31) - 8, 7), ((1 << 31) - 7, 7), ((1 << 31) - 1, 9)]
)
def test_sequences_wrap_as_in_java(java, sequence, records):
    """DefaultRecordBatch.incrementSequence."""
    assert next_sequence(sequence, records) == java.record.DefaultRecordBatch.incrementSequence(
        sequence, records
    )


SELECTOR = """
import org.apache.kafka.common.replica.*;
public class Followers implements ReplicaSelector {
    public java.util.Optional select(
        org.apache.kafka.common.TopicPartition partition, ClientMetadata client, PartitionView view
    ) {
        java.util.Iterator replicas = view.replicas().iterator();
        while (replicas.hasNext()) {
            Object replica = replicas.next();
            if (!replica.equals(view.leader())) return java.util.Optional.of(replica);
        }
        return java.util.Optional.empty();
    }
    public void configure(java.util.Map settings) {}
    public void close() {}
}
"""


@pytest.mark.chaos
def test_brokers_that_send_every_reader_to_a_follower_are_read(java, tmp_path, monkeypatch):
    """A selector of the brokers' own (KIP-392): their answer named a follower, and held no records."""
    compiler = java.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SELECTOR)
    (tmp_path / "Followers.class").write_bytes(bytes(compiler.getBytecodes()["Followers"]))
    monkeypatch.setattr(launch, "broker_classpath", lambda version: (*broker_classpath(version), tmp_path))
    with EmbeddedKafka(brokers=3, broker_config={"replica.selector.class": "Followers"}) as kafka:
        pipeline = Pipeline(kafka)
        pipeline.publish(["a", "b", "c"])
        assert pipeline.run().records_read == 3
