"""Encoding and reading alone, on one core, in CPU seconds, compared with other Python clients.

Every peer does the same work on the same records in the same round; a rate is records per CPU second.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_eos.recordbatch.compression import Compressor
from airflow_eos.recordbatch.decode import decode_batches
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.partitioner import murmur2, partitions_for
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.stamp import stamp
from benchmarks.broker import benchmark_broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_eos_testing import EmbeddedKafka

_TARGET_BYTES = 20_000_000
_CODECS = ("none", "zstd", "lz4", "snappy", "gzip")


@dataclass(frozen=True)
class Sample:
    """Records of one size: keys of 10 bytes, values of half noise, as compressible as JSON."""

    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None = None

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.values)

    @classmethod
    def of(cls, size: int, records: int, *, headers: bool = False) -> Sample:
        """Create ``records`` records with values of ``size`` bytes."""
        noise = np.random.default_rng(7).integers(97, 123, (records, max(1, size // 2)), np.uint8)
        text = np.full((records, size), ord("x"), np.uint8)
        text[:, : noise.shape[1]] = noise[:, :size]
        values = pa.array([row.tobytes() for row in text], pa.binary())
        keys = pa.array([b"key%07d" % (i * 7919 % 9_999_991) for i in range(records)], pa.binary())
        trace = None
        if headers:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            trace = pa.array([[{"key": "trace", "value": b"%016d" % i}] for i in range(records)], kind)
        return cls(keys, values, trace)

    def sealed(self, codec: str = "zstd", partitions: int = 4) -> list[bytes]:
        """Partition, encode and compress the records; return the batches."""
        chosen = partitions_for(self.records, partitions, topic="t", key=self.keys)
        compressor = Compressor(codec)
        return [
            batch.data
            for batch in seal(
                self.values, chosen, topic="t", key=self.keys, headers=self.headers, compressor=compressor
            )
        ]


def micro(out: Path, rounds: int) -> int:
    """Measure, write ``micro.json``, print a line per case."""
    pa.set_cpu_count(1)
    hundred = Sample.of(100, 200_000)
    report: dict[str, Any] = {"encode": _encode_peers(hundred, rounds)}
    with benchmark_broker() as kafka:
        kafka.create_topic("micro", partitions=1)
        report["decode"] = _decode_peers(hundred, kafka.bootstrap_servers, rounds)
        report["encode"]["confluent-kafka produce"] = _confluent_produce(hundred, kafka, rounds)
    report["encode_ratios"] = _ratios(report["encode"])
    report["decode_ratios"] = _ratios(report["decode"])
    report["murmur2"] = _rate(hundred.records, lambda: murmur2(hundred.keys), rounds)
    report["sizes"] = {
        size: _both(Sample.of(size, max(50, min(200_000, _TARGET_BYTES // size))), rounds)
        for size in (10, 100, 1_000, 100_000)
    }
    report["headers"] = _both(Sample.of(100, 200_000, headers=True), rounds)
    report["codecs"] = {codec: _both(hundred, rounds, codec) for codec in _CODECS}
    report["partitions"] = {
        count: _rate(hundred.records, partial(hundred.sealed, partitions=count), rounds)
        for count in (4, 50, 1_000)
    }
    (out / "micro.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    print(
        f"micro: encode {report['encode_ratios']['kafka-python builder']:.1f} times kafka-python's builder, "
        f"decode {report['decode_ratios']['confluent-kafka consume to Arrow']:.1f} times confluent-kafka's "
        "consume to Arrow"
    )
    return 0


def _rate(records: int, job: Callable[[], Any], rounds: int) -> float:
    """Return the median number of records per CPU second of this process."""
    job()
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        job()
        taken.append(time.process_time() - begun)
    return round(records / max(1e-9, statistics.median(taken)))


def _ratios(rates: dict[str, float]) -> dict[str, float]:
    return {name: round(rates["airflow-eos"] / rate, 2) for name, rate in rates.items()}


def _both(sample: Sample, rounds: int, codec: str = "zstd") -> dict[str, float]:
    log = _log(sample.sealed(codec))
    return {
        "encode": _rate(sample.records, lambda: sample.sealed(codec), rounds),
        "decode": _rate(sample.records, lambda: _decoded(log), rounds),
    }


def _log(sealed: list[bytes]) -> bytes:
    """Return one partition's log: as a broker does, give each batch the offset after the previous one."""
    log, offset = bytearray(), 0
    for batch in sealed:
        log += offset.to_bytes(8, "big") + stamp(batch, 1, 0, 0)[8:]
        offset += next(iter_batches(batch, "t", 0)).header.record_count
    return bytes(log)


def _decoded(log: bytes) -> int:
    return sum(len(batch) for batch in decode_batches(iter_batches(log, "t", 0)))


def _encode_peers(sample: Sample, rounds: int) -> dict[str, float]:
    from kafka.record.default_records import DefaultRecordBatchBuilder

    keys, values = sample.keys.to_pylist(), sample.values.to_pylist()

    def builder() -> None:
        for start in range(0, sample.records, 10_000):
            batch = DefaultRecordBatchBuilder(2, 4, 1, -1, -1, -1, 1 << 24)
            for i in range(start, min(start + 10_000, sample.records)):
                batch.append(i - start, 1_700_000_000_000, keys[i], values[i], [])
            batch.build()

    return {
        "airflow-eos": _rate(sample.records, sample.sealed, rounds),
        "kafka-python builder": _rate(sample.records, builder, rounds),
    }


def _confluent_produce(sample: Sample, kafka: EmbeddedKafka, rounds: int) -> float:
    from confluent_kafka import Producer

    kafka.create_topic("produced", partitions=4)
    keys, values = sample.keys.to_pylist(), sample.values.to_pylist()
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": "zstd",
            "compression.level": 1,
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 2 * sample.records,
        }
    )

    def produce() -> None:
        for key, value in zip(keys, values, strict=True):
            producer.produce("produced", key=key, value=value)
        producer.flush(60)

    return _rate(sample.records, produce, rounds)


def _decode_peers(sample: Sample, servers: str, rounds: int) -> dict[str, float]:
    """Measure all clients as they fetch from the broker, in CPU seconds of all threads of this process."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPartition

    from airflow_eos.model import ranges
    from airflow_eos.wire.client_config import ClientConfig
    from airflow_eos.wire.connection import BrokerConnections
    from airflow_eos.wire.fetch import decoded, fetch_answers

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": "zstd",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2 * sample.records,
        }
    )
    for key, value in zip(sample.keys.to_pylist(), sample.values.to_pylist(), strict=True):
        producer.produce("micro", key=key, value=value)
    producer.flush(60)

    def eos() -> None:
        with BrokerConnections(ClientConfig.of({"bootstrap.servers": servers})) as connections:
            answers = fetch_answers(connections, ranges.TopicPartition("micro", 0), 0, sample.records)
            count = sum(len(b) for b in decoded(connections, answers, 0, sample.records))
        assert count == sample.records

    def confluent() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition("micro", 0, 0)])
        count = 0
        while count < sample.records:
            messages = consumer.consume(10_000, 1.0)
            pa.table(
                {
                    "key": pa.array([m.key() for m in messages], pa.binary()),
                    "value": pa.array([m.value() for m in messages], pa.binary()),
                    "offset": pa.array([m.offset() for m in messages], pa.int64()),
                    "timestamp": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
                }
            )
            count += len(messages)
        consumer.close()

    def python() -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=servers, enable_auto_commit=False, isolation_level="read_committed"
        )
        consumer.assign([KafkaPartition("micro", 0)])
        consumer.seek(KafkaPartition("micro", 0), 0)
        count = 0
        while count < sample.records:
            count += sum(map(len, consumer.poll(1000, max_records=10_000).values()))
        consumer.close()

    return {
        "airflow-eos": _rate(sample.records, eos, rounds),
        "confluent-kafka consume to Arrow": _rate(sample.records, confluent, rounds),
        "kafka-python consumer": _rate(sample.records, python, rounds),
    }
