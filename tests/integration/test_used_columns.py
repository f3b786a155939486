"""Read tasks fill the columns that a transform uses, and a run writes the same as with all of them."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter

import pyarrow as pa
import pytest

from airflow_eos.model.ranges import Interval
from airflow_eos.spark import used_columns as module
from airflow_eos.spark.session import settings
from airflow_eos.spark.source import source_frame
from airflow_eos.spark.used_columns import SWITCH, used_columns
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos_testing import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.spark_sessions import run

START = int(time.time() * 1000) - 3_600_000  # topic retention would delete older records


def same_rows(batches):
    """Return an author's Arrow batches unchanged."""
    yield from batches


def functions():
    """Return pyspark.sql.functions, which need a session."""
    from pyspark.sql import functions

    return functions


def latest_of_each_key(df):
    from pyspark.sql import Window

    window = Window.partitionBy("key").orderBy(functions().desc("offset"), "partition")
    return df.withColumn("n", functions().row_number().over(window)).where("n = 1").select("key", "value")


def named_as_our_read_task(df):
    """An author's function over the source, with the name of the package's own."""

    def ReadTask(batches):  # noqa: N802
        for batch in batches:
            yield pa.record_batch({"key": batch["key"], "payload": batch["value"]})

    return df.mapInArrow(ReadTask, "key binary, payload binary").selectExpr("key", "payload as value")


CASES = {
    "one value": (
        lambda df: df.select("key", functions().concat("value", functions().lit(b"!")).alias("value")),
        "key value",
    ),
    "no column": (lambda df: df.select(functions().lit(b"x").alias("value")), ""),
    "a filter": (lambda df: df.where("offset % 3 = 1").select("value"), "offset value"),
    "two filters": (
        lambda df: (
            df.where("offset % 3 = 1").where(functions().rand(1) >= 0).where("partition = 0").select("value")
        ),
        "offset partition value",
    ),
    "what a sink takes": (
        lambda df: df.where("partition = 1"),
        "headers key partition timestamp topic value",
    ),
    "places": (
        lambda df: df.selectExpr(
            "key",
            "cast(concat_ws('@', partition, offset, unix_millis(timestamp)) as binary) as value",
        ),
        "key offset partition timestamp",
    ),
    "a whole row": (
        lambda df: df.select(functions().to_json(functions().struct("*")).cast("binary").alias("value")),
        "headers key offset partition timestamp timestampType topic value",
    ),
    "headers": (
        lambda df: df.select("value", functions().slice("headers", 1, 1).alias("headers")),
        "headers value",
    ),
    "an aggregate": (
        lambda df: df.groupBy("key").agg(functions().max("value").alias("value")),
        "key value",
    ),
    "a count": (lambda df: df.agg(functions().count("*").cast("string").cast("binary").alias("value")), ""),
    "the latest": (
        latest_of_each_key,
        "key offset partition value",
    ),
    "a sort": (
        lambda df: df.sort("offset", "partition").limit(50).select("value"),
        "offset partition value",
    ),
    "a union": (
        lambda df: df.select("value").union(df.where("partition = 0").select("key")),
        "key partition value",
    ),
    "a join with itself": (
        lambda df: (
            df.alias("a")
            .join(df.where("offset < 20").alias("b"), functions().expr("a.key = b.key"))
            .select("a.value", "b.topic")
            .select("value")
        ),
        "key offset value",
    ),
    "a join with numbers": (
        lambda df: df.join(df.sparkSession.range(40).alias("n"), functions().expr("offset = n.id")).select(
            "value"
        ),
        None,
    ),
    "a function in Python": (
        lambda df: df.select("key", functions().udf(lambda v: v * 2, "binary")("value").alias("value")),
        "key value",
    ),
    "exploded headers": (
        lambda df: df.select(functions().explode("headers").alias("h")).select("h.value"),
        "headers",
    ),
    "Arrow batches": (lambda df: df.mapInArrow(same_rows, df.schema).select("value"), None),
    "a function of the read task's name": (named_as_our_read_task, None),
    "a cache": (lambda df: df.select("value").cache(), None),
    "a cache and the source": (
        lambda df: df.select("value").union(df.select("value", "key").cache().select("key")),
        None,
    ),
    "a checkpoint": (lambda df: df.select("value").localCheckpoint(), None),
    "a late checkpoint and the source": (
        lambda df: df.select("value").union(df.localCheckpoint(eager=False).select("key")),
        None,
    ),
    "rows of Python": (
        lambda df: df.rdd.map(lambda row: (row.key, row.value)).toDF("key binary, value binary"),
        None,
    ),
    "a subquery": (
        lambda df: df.where(
            functions().col("offset") <= df.agg(functions().expr("max(offset) - 10")).scalar()
        ).select("value"),
        None,
    ),
}


@pytest.fixture(scope="module")
def source(broker):
    """Two partitions of records that differ in each column."""
    topic = broker.topic("src", 2)
    broker.produce(
        topic,
        [
            {
                "key": b"k%d" % (number % 20),
                "value": b"%d" % number,
                "timestamp": START + number,
                "headers": [("h", b"%d" % number), ("i", b"")],
                "partition": number % 2,
            }
            for number in range(200)
        ],
    )
    return topic


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Runs of these few records count as large."""
    monkeypatch.setattr("airflow_eos.spark.sealing.LARGE_RUN", 100)


@pytest.fixture
def answers(monkeypatch):
    """What each seal learns from its plan."""
    every = []

    def recorded(frame):
        every.append(used_columns(frame))
        return every[-1]

    monkeypatch.setattr(module, "used_columns", recorded)
    return every


def content(broker, topic):
    return Counter((r.key, r.value, r.headers) for r in read_topic(broker.bootstrap, topic))


@pytest.mark.parametrize(("process", "columns"), rest_in_chaos(12, CASES.values()), ids=CASES)
def test_a_run_writes_what_the_transform_returns(broker, spark, source, answers, process, columns):
    """Whatever the plan: each column that it uses is filled, and all are if that is unknown."""
    sink = broker.topic("out", 2)
    run(broker, spark, broker.spec(source, sink), process)
    assert answers == [None if columns is None else set(columns.split())]
    every_column = source_frame(spark, ClientConfig.of(broker.config), [broker.plan(source).ranges])
    returned = Counter(
        (
            row.get("key"),
            row["value"],
            tuple((header.key, header.value) for header in row.get("headers") or ()),
        )
        for row in (row.asDict() for row in process(every_column).collect())
    )
    assert content(broker, sink) == returned
    assert returned.total() > 0


def test_all_columns_are_read_if_the_session_says_so(broker, spark, source, answers):
    """The switch is in docs/performance.md."""
    with settings(spark, {SWITCH: "true"}):
        run(broker, spark, broker.spec(source, broker.topic("out", 1)), lambda df: df.select("value"))
    assert answers == []


def test_a_column_that_is_not_used_is_not_filled(broker, spark, source, monkeypatch):
    """As if the plan used keys alone: values are null, in this run's reads and in no other."""
    monkeypatch.setattr(module, "used_columns", lambda *_: frozenset({"key"}))
    sinks = broker.topic("out", 1), broker.topic("out", 1)
    run(broker, spark, broker.spec(source, sinks[0]), lambda df: df.select("key", "value"))
    monkeypatch.setattr(module, "used_columns", used_columns)
    run(broker, spark, broker.spec(source, sinks[1]), lambda df: df.select("key", "value"))
    first, second = (content(broker, sink) for sink in sinks)
    assert {value for _, value, _ in first} == {None}
    assert len({value for _, value, _ in second}) == first.total() == 200


def test_late_records_are_counted_where_the_transform_uses_no_timestamp(broker, spark, source, answers):
    """Read tasks count before they leave columns out."""
    start = dt.datetime.fromtimestamp((START + 30) / 1000, dt.timezone.utc)
    sink = broker.topic("out", 1)
    spec = broker.spec(source, sink, ranges=Interval(start, start + dt.timedelta(hours=1)))
    plan = broker.plan(source, mode="interval")
    manifest, _ = run(broker, spark, spec, lambda df: df.select("value"), plan)
    assert answers == [{"value"}]
    assert (manifest.records_late, sum(manifest.records_read.values())) == (30, 200)


def test_a_small_run_asks_no_plan(broker, spark, source, answers, monkeypatch):
    """Analysing it would cost more than it saves."""
    monkeypatch.setattr("airflow_eos.spark.sealing.LARGE_RUN", 201)
    run(broker, spark, broker.spec(source, broker.topic("out", 1)), lambda df: df.select("value"))
    assert answers == []


def test_a_session_that_hides_its_plans_reads_all_columns(broker, spark, source, monkeypatch):
    """Some platforms allow only some of the JVM's methods."""

    def hidden(*_):
        raise RuntimeError("Method public optimizedPlan() is not whitelisted")

    monkeypatch.setattr(module, "used_columns", hidden)
    sink = broker.topic("out", 1)
    run(broker, spark, broker.spec(source, sink), lambda df: df.select("key", "value"))
    assert content(broker, sink).total() == len(content(broker, sink)) == 200


def test_without_a_thread_of_the_jvm_for_each_of_python_all_columns_are_read(
    broker, spark, source, answers, monkeypatch
):
    """Job properties belong to a JVM thread: another Python thread that shares it would get them."""
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    run(broker, spark, broker.spec(source, broker.topic("out", 1)), lambda df: df.select("key", "value"))
    assert answers == []
