"""The jobs that are compared: the same input, the same transform, the same codec."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos import Cursor, LedgerSettings, Run, RunSpec, arrow_process
from airflow_eos.engine.run import RunAttempt
from benchmarks.records import is_ok

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.run.states import State

SOURCE = "src"


@dataclass(frozen=True)
class SparkOptions:
    """Options of Spark's own Kafka connector, in addition to those that the job needs.

    :param source: options of the reader.
    :param sink: options of the writer.
    """

    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)


DEFAULTS = SparkOptions()
TUNED = SparkOptions(
    source={"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": str(8 << 20)},
    sink={
        "kafka.batch.size": str(256 << 10),
        "kafka.linger.ms": "20",
        "kafka.compression.zstd.level": "1",
    },
)
"""The fastest options that ``python -m benchmarks tuning`` has measured."""


@dataclass
class Cluster:
    """Session, brokers and input of the jobs.

    :param source: topic, read as a whole.
    :param stages: seconds from the start of our last run to each of its states.
    """

    spark: SparkSession
    servers: str
    records: int
    source: str = SOURCE
    stages: dict[str, float] = field(default_factory=dict)


def transform(frame: DataFrame) -> DataFrame:
    """Change every value; keep the key."""
    from pyspark.sql import functions as F  # noqa: N812 - the field's name for it

    return frame.select("key", F.concat("value", F.lit(b"!")).alias("value"))


def parse(frame: DataFrame) -> DataFrame:
    """Parse JSON, drop the orders that are not ``ok``, add a column, write JSON, all with built-in functions.

    Headers and timestamps are passed on; Spark's own sink ignores the timestamps.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the field's name for it

    schema = "id long, user string, amount double, city string, note string, ok boolean"
    order = F.from_json(F.col("value").cast("string"), schema)
    orders = frame.select("key", "headers", "timestamp", order.alias("order")).where("order.ok")
    value = F.to_json(
        F.struct("order.id", "order.user", "order.city", F.expr("order.amount * 1.19 AS gross"))
    )
    return orders.select("key", value.cast("binary").alias("value"), "headers", "timestamp")


@arrow_process
def transform_arrow(batch: Any) -> Any:
    """Change every value as :func:`transform`, on Arrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    value = pc.binary_join_element_wise(batch["value"], pa.scalar(b"!"), pa.scalar(b""))
    return pa.record_batch({"key": batch["key"], "value": value})


PROCESSES = {"DataFrame": transform, "Arrow": transform_arrow}
"""The same work, written in both ways."""


@dataclass(frozen=True)
class Workload:
    """The work of the jobs on each record.

    :param frame: function on a DataFrame, for our job and Spark's.
    :param arrow: the same function on Arrow; None: not measured.
    :param written: returns the number of output records for a number of input records.
    :param headers: whether Spark's source has to read them.
    """

    frame: Callable[[DataFrame], DataFrame]
    arrow: Callable[[Any], Any] | None
    written: Callable[[int], int]
    headers: bool = False


WORKLOADS = {
    "copy": Workload(transform, transform_arrow, lambda records: records),
    "parse": Workload(parse, None, lambda records: sum(map(is_ok, range(records))), headers=True),
}


def kafka_source(cluster: Cluster, options: Mapping[str, str], *, headers: bool = False) -> DataFrame:
    """Return Spark's own source over the whole topic."""
    return (
        cluster.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", cluster.servers)
        .option("subscribe", cluster.source)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", headers)
        .options(**options)
        .load()
    )


def at_least_once(cluster: Cluster, sink: str, options: SparkOptions, workload: str = "copy") -> None:
    """Run Spark's own Kafka source and sink: no transaction, duplicates after a crash."""
    work = WORKLOADS[workload]
    rows = work.frame(kafka_source(cluster, options.source, headers=work.headers))
    (
        rows.write.format("kafka")
        .option("kafka.bootstrap.servers", cluster.servers)
        .option("kafka.acks", "all")
        .option("kafka.compression.type", "zstd")
        .options(**options.sink)
        .option("topic", sink)
        .save()
    )


def exactly_once(cluster: Cluster, sink_topic: str | None, process: Any, **changes: Any) -> Any:
    """Execute one run of this package over the whole topic, with a group of its own; return its record."""
    settings = {
        "kafka": {"bootstrap.servers": cluster.servers},
        "pipeline": "bench",
        "run_id": uuid.uuid4().hex,
        "source_topics": (cluster.source,),
        "sink_topic": sink_topic,
        "group_id": f"bench-{uuid.uuid4().hex}",
        "ranges": Cursor(),
        "ledger": LedgerSettings(partitions=4),
        **changes,
    }
    cluster.stages = {}
    begun = time.perf_counter()

    def entered(state: State) -> None:
        # Keep the first time: a run into a table enters some states again, under its second epoch.
        cluster.stages.setdefault(state.value, time.perf_counter() - begun)

    run = Run(
        cluster.spark,
        RunSpec(**settings),
        process,
        on_state=entered,
    )
    record = run.execute()
    cluster.stages["END"] = time.perf_counter() - begun
    return record


def client_loop(cluster: Cluster, sink: str) -> None:
    """Run confluent-kafka's consume-transform-produce loop with transactions, in a process of its own."""
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
    """Read our source alone, into Spark's noop sink."""
    from airflow_eos.spark.placement import pack_slices, plan_slices
    from airflow_eos.spark.source import source_frame
    from airflow_eos.wire.client_config import ClientConfig
    from benchmarks.floors import whole_topic

    config = ClientConfig.of({"bootstrap.servers": cluster.servers})
    tasks = pack_slices(plan_slices(whole_topic(config, cluster.source), 2), 2)
    source_frame(cluster.spark, config, tasks).write.format("noop").mode("overwrite").save()


def read_spark(cluster: Cluster) -> None:
    """Read Spark's own source alone, into Spark's noop sink."""
    kafka_source(cluster, TUNED.source).write.format("noop").mode("overwrite").save()


def empty_run(spec: RunSpec) -> RunRecord:
    """Execute a run that has nothing to read, and must therefore not start Spark."""
    return RunAttempt(_no_spark, spec, lambda df: df).execute()


def _no_spark(_plan: object) -> Any:
    raise AssertionError("a run without records started Spark")
