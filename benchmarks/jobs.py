"""The two jobs that are compared: the same input, the same transform, the same codec."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the field's name for it

from airflow_eos.run import LedgerSettings, RunSpec, read_process_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.run import RunRecord

TUNED = {"kafka.batch.size": "262144", "kafka.linger.ms": "20"}


def transform(frame: DataFrame) -> DataFrame:
    """Change every value; keep the key."""
    value = F.concat(F.col("value").cast("string"), F.lit("!"))
    return frame.select("key", F.encode(value, "utf-8").alias("value"))


def at_least_once(spark: SparkSession, servers: str, sink: str, options: dict[str, str]) -> None:
    """Spark's own Kafka source and sink: no transaction, duplicates after a crash."""
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "src")
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    writer = transform(source).write.format("kafka").option("kafka.bootstrap.servers", servers)
    for key, value in {"kafka.acks": "all", "kafka.compression.type": "zstd", **options}.items():
        writer = writer.option(key, value)
    writer.option("topic", sink).save()


def exactly_once(spark: SparkSession, servers: str, sink: str) -> RunRecord:
    """One run of this package over the whole topic, with a group of its own."""
    spec = RunSpec(
        kafka={"bootstrap.servers": servers},
        pipeline="bench",
        run_id=uuid.uuid4().hex,
        source_topics=("src",),
        sink_topic=sink,
        group_id=f"bench-{uuid.uuid4().hex}",
        ledger=LedgerSettings(partitions=4),
    )
    return read_process_write(spark, spec, transform)
