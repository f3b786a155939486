"""If a transform makes one row of each small record, Spark counts rows instead of bytes."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from airflow_eos.spark import arrow_batches, blocks
from airflow_eos.spark.session import checkpointed
from airflow_eos_testing import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.spark_sessions import run

COUNT = 200
SENTENCE = "the ranges are read again, in batches for large records"


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Runs of these few records count as large."""
    monkeypatch.setattr("airflow_eos.spark.sealing.LARGE_RUN", 100)


@pytest.fixture(scope="module")
def source(broker):
    """Two partitions of records of 1 kB."""
    topic = broker.topic("records", 2)
    broker.produce(
        topic,
        [{"key": b"%d" % index, "value": b"v" * 1_000, "partition": index % 2} for index in range(COUNT)],
    )
    return topic


@pytest.fixture
def uncounted(monkeypatch):
    """Collect the settings of each seal whose rows are only counted."""
    every = []

    def recorded(spark):
        every.append(arrow_batches.settings_of_small_records(spark))
        return every[-1]

    monkeypatch.setattr(blocks, "settings_of_small_records", recorded)
    return every


def python_udf(df):
    from pyspark.sql import functions

    return df.select("key", functions.udf(lambda value: value, "binary")("value").alias("value"))


def jvm_udf(df):
    from pyspark.ml.functions import array_to_vector, vector_to_array
    from pyspark.sql import functions

    vector = array_to_vector(functions.array(functions.col("offset").cast("double")))
    return df.where(vector_to_array(vector)[0] >= 0).select("key", "value")


def with_a_subquery(df):
    from pyspark.sql import functions

    return df.where(functions.col("offset") <= df.agg(functions.max("offset")).scalar()).select("value")


CASES = {
    "columns": (lambda df: df.select("key", "value"), True),
    "expressions": (
        lambda df: df.selectExpr("concat(key, X'21') key", "upper(string(value)) value"),
        True,
    ),
    "a filter": (lambda df: df.where("offset % 2 = 0").select("key", "value"), False),
    "headers": (lambda df: df.select("key", "value", "headers"), True),
    "a function in Python": (python_udf, False),
    "a function that makes large values": (
        lambda df: df.selectExpr("key", "repeat(string(value), 2) as value"),
        False,
    ),
    "a large literal": (lambda df: df.selectExpr("key", f"concat('{'x' * 20_000}', value) as value"), False),
    "a column of such a name": (
        lambda df: df.selectExpr("key", "value as repeat").selectExpr("key", "substr(repeat, 2) as value"),
        True,
    ),
    "a function of the JVM": (jvm_udf, False),
    "more rows": (lambda df: df.selectExpr("key", "explode(array(value, value)) as value"), False),
    "another order": (lambda df: df.repartition(2).select("key", "value"), False),
    "a subquery": (with_a_subquery, False),
}


@pytest.mark.parametrize(("process", "only_selects"), rest_in_chaos(6, CASES.values()), ids=CASES)
def test_rows_are_only_counted_where_the_plan_bounds_them(
    broker, spark, source, uncounted, process, only_selects
):
    """A function may make a large row from a small record, and a filter may keep only large ones.

    3,000 rows of 600 kB, ``repeat(string(value), 60000)``, ended the JVM of each try.
    """
    run(broker, spark, broker.spec(source, broker.topic("out", 1)), process)
    assert len(uncounted) == only_selects


@pytest.mark.parametrize("together", [20_000, 1_000_000])
def test_large_records_are_read_again(broker, spark, source, uncounted, monkeypatch, caplog, together):
    """By a seal whose bytes Spark counts; each record is written once either way."""
    monkeypatch.setattr(arrow_batches, "MOST_BYTES_TOGETHER", together)
    caplog.set_level("INFO")
    sink = broker.topic("out", 1)
    run(broker, spark, broker.spec(source, sink), lambda df: df.select("key", "value"))
    assert len(uncounted) == 1
    assert (SENTENCE in caplog.text) == (together == 20_000)
    written = Counter(record.key for record in read_topic(broker.bootstrap, sink))
    assert written == Counter(b"%d" % index for index in range(COUNT))
    assert spark.sparkContext.getLocalProperty(arrow_batches.BOUND) is None


def test_a_run_beside_one_of_small_records_has_the_limits_of_the_session(
    broker, spark, source, uncounted, monkeypatch, caplog
):
    """Large rows ended the JVM of both; large records were read again until the other run ended."""
    monkeypatch.setattr(arrow_batches, "MOST_BYTES_TOGETHER", 20_000)
    caplog.set_level("INFO")
    names = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch")
    rows_are_counted, is_over, seen = threading.Event(), threading.Event(), []

    def waits(*arguments):
        if not rows_are_counted.is_set():
            seen.append([spark.conf.get(name) for name in names])
            rows_are_counted.set()
            assert is_over.wait(60)
        return checkpointed(*arguments)

    def limits(df):
        seen.append([spark.conf.get(name) for name in names])
        return df.where("offset >= 0").select("key", "value")

    def small_records():
        run(broker, spark, broker.spec(source, sinks[0]), lambda df: df.select("key", "value"))

    own = [spark.conf.get(name) for name in names]
    monkeypatch.setattr(blocks, "checkpointed", waits)
    sinks = [broker.topic("out", 1) for _ in range(2)]
    other = threading.Thread(target=small_records)
    other.start()
    assert rows_are_counted.wait(60)
    try:
        run(broker, spark, broker.spec(source, sinks[1]), limits)
        assert SENTENCE not in caplog.text
    finally:
        is_over.set()
        other.join(60)
    assert seen == [["2048", str(2**31 - 1)], own]
    assert caplog.text.count(SENTENCE) == 1
    for sink in sinks:
        assert Counter(r.key for r in read_topic(broker.bootstrap, sink)) == Counter(
            b"%d" % index for index in range(COUNT)
        )
    assert [spark.conf.get(name) for name in names] == own


def test_a_bound_of_the_session_is_kept(broker, spark, source, uncounted):
    """A user who sets one knows the records."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        run(broker, spark, broker.spec(source, broker.topic("out", 1)), lambda df: df.select("key", "value"))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert uncounted == [{}]
