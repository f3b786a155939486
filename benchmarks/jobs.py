"""The jobs that are compared: the same input, the same transform, the same codec."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos import Cursor, LedgerSettings, Run, RunSpec, arrow_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TUNED = {"kafka.batch.size": "262144", "kafka.linger.ms": "20"}
SOURCE = "src"


@dataclass
class Cluster:
    """Where the jobs run, and what they read.

    :param source: topic, read as a whole.
    :param stages: seconds since the start per state of the last run of ours.
    """

    spark: SparkSession
    servers: str
    records: int
    source: str = SOURCE
    stages: dict[str, float] = field(default_factory=dict)


def transform(frame: DataFrame) -> DataFrame:
    """Change every value; keep the key."""
    from pyspark.sql import functions as F  # noqa: N812 - the field's name for it

    value = F.concat(F.col("value").cast("string"), F.lit("!"))
    return frame.select("key", F.encode(value, "utf-8").alias("value"))


@arrow_process
def transform_arrow(batch: Any) -> Any:
    """Do the same on Arrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    value = pc.binary_join_element_wise(batch["value"], pa.scalar(b"!"), pa.scalar(b""))
    return pa.record_batch({"key": batch["key"], "value": value})


PROCESSES = {"DataFrame": transform, "Arrow": transform_arrow}
"""Both ways to write the same work."""


def kafka_source(cluster: Cluster) -> DataFrame:
    """Spark's own source over the whole topic."""
    return (
        cluster.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", cluster.servers)
        .option("subscribe", cluster.source)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )


def at_least_once(cluster: Cluster, sink: str, options: dict[str, str]) -> None:
    """Spark's own Kafka source and sink: no transaction, duplicates after a crash."""
    source = transform(kafka_source(cluster))
    writer = source.write.format("kafka").option("kafka.bootstrap.servers", cluster.servers)
    for key, value in {"kafka.acks": "all", "kafka.compression.type": "zstd", **options}.items():
        writer = writer.option(key, value)
    writer.option("topic", sink).save()


def exactly_once(cluster: Cluster, sink: str, process: Any, **changes: Any) -> Any:
    """One run of this package over the whole topic, with a group of its own; returns its record."""
    settings = {
        "kafka": {"bootstrap.servers": cluster.servers},
        "pipeline": "bench",
        "run_id": uuid.uuid4().hex,
        "source_topics": (cluster.source,),
        "sink_topic": sink,
        "group_id": f"bench-{uuid.uuid4().hex}",
        "ranges": Cursor(),
        "ledger": LedgerSettings(partitions=4),
        **changes,
    }
    cluster.stages = {}
    begun = time.perf_counter()
    run = Run(
        cluster.spark,
        RunSpec(**settings),
        process,
        on_state=lambda state: cluster.stages.update({state.value: time.perf_counter() - begun}),
    )
    record = run.execute()
    cluster.stages["END"] = time.perf_counter() - begun
    return record


def client_loop(cluster: Cluster, sink: str) -> None:
    """confluent-kafka's consume-transform-produce loop with transactions, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.client_loop",
        cluster.servers,
        cluster.source,
        sink,
        str(cluster.records),
    ]
    subprocess.run(command, check=True, timeout=1800)


def read_ours(cluster: Cluster) -> None:
    """Our source alone, into Spark's noop sink."""
    from airflow_eos.spark.placement import pack_slices, plan_slices
    from airflow_eos.spark.source import source_frame
    from airflow_eos.wire.client_config import ClientConfig
    from benchmarks.floors import whole_topic

    config = ClientConfig.of({"bootstrap.servers": cluster.servers})
    tasks = pack_slices(plan_slices(whole_topic(config, cluster.source), 2), 2)
    source_frame(cluster.spark, config, tasks).write.format("noop").mode("overwrite").save()


def read_spark(cluster: Cluster) -> None:
    """Spark's own source alone, into Spark's noop sink."""
    kafka_source(cluster).write.format("noop").mode("overwrite").save()
