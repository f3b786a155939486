"""The data plane on a real broker: sealed records are written once, in order, in place, or not at all.

Runs on a classic session here; :mod:`test_spark_connect` runs the same tests on Spark Connect,
in another process.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from airflow_eos.exceptions import (
    ConfigurationError,
    EnvironmentMismatch,
    OffsetsOutOfRange,
    ProcessFailed,
    ProducerFenced,
    RecordRefused,
    RecordTooLarge,
    RunFailed,
    SealedBlockLost,
    SendError,
    UnknownTopic,
)
from airflow_eos.model.output import NOT_COUNTED
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Interval, OffsetRange, TopicPartition
from airflow_eos.operators.retriable import is_final
from airflow_eos.spark import SparkDataPlane, preflight, probe
from airflow_eos.spark.code_shipping import our_modules
from airflow_eos.spark.frame_contract import sink_columns
from airflow_eos.spark.placement import route, route_by_hash
from airflow_eos.spark.session import free_checkpoint
from airflow_eos.spark.single_evaluation import REPEATABLE
from airflow_eos.spark.source import ReadTask, source_frame
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos_testing import count_records, read_topic
from tests.support.cases import rest_in_chaos
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until
from tests.support.source_order import out_of_order, seal_in_tasks
from tests.support.spark_sessions import KIND, attempt, run

CONNECT = os.environ.get(KIND) == "connect"
COLUMNS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
    "timestampType:int,headers:array<struct<key:string,value:binary>>>"
)
"""The columns of Spark's own Kafka source."""
START = int(time.time() * 1000) - 3_600_000  # topic retention would delete older records


@pytest.fixture(scope="module")
def fn(spark):
    """pyspark.sql.functions, which need a session."""
    from pyspark.sql import functions

    return functions


def committed(broker, topic):
    return read_topic(broker.bootstrap, topic)


# -- what is written --------------------------------------------------------------------------------------


def test_an_identity_run_copies_records_exactly(broker, spark):
    """Keys, values, tombstones, empty values, null keys, headers and timestamps, each once."""
    source, sink = broker.topic("src", 3), broker.topic("out", 3)
    given = [
        {
            "key": b"a",
            "value": b"1",
            "timestamp": START,
            "headers": [("h", b"x"), ("h", b"y"), ("null", None)],
        },
        {"key": b"a", "value": None, "timestamp": START + 1},
        {"key": None, "value": b"", "timestamp": START + 2, "partition": 1},
        {"key": b"", "value": b"\x00\xff", "timestamp": START + 3, "partition": 2},
        *({"key": b"k%d" % i, "value": b"v%d" % i, "timestamp": START + i} for i in range(500)),
    ]
    broker.produce(source, given)
    manifest, receipts = run(broker, spark, broker.spec(source, sink), lambda df: df)

    def content(records):
        return Counter((r.partition, r.key, r.value, r.headers, r.timestamp) for r in records)

    assert content(committed(broker, sink)) == content(committed(broker, source))
    assert manifest.records == sum(r.records for r in receipts) == len(given)
    assert {r.partition: r.records for r in receipts} == Counter(r.partition for r in committed(broker, sink))


def test_the_default_partitioner_is_that_of_javas_producer(broker, spark, fn):
    """Without a partition column, keys choose the partition, as with librdkafka's murmur2."""
    source, sink, reference = broker.numbered("src", 2, 400), broker.topic("out", 5), broker.topic("ref", 5)
    producer = Producer({**broker.config, "partitioner": "murmur2_random"})
    for record in committed(broker, source):
        producer.produce(reference, key=record.key, value=record.value)
    producer.flush(30)
    run(broker, spark, broker.spec(source, sink), lambda df: df.select("key", "value"))
    wanted = Counter((r.partition, r.key, r.value) for r in committed(broker, reference))
    assert Counter((r.partition, r.key, r.value) for r in committed(broker, sink)) == wanted


def test_rows_choose_topic_and_partition(broker, spark, fn):
    """Three topics in one transaction; a partition column wins, null leaves the choice to the key."""
    source = broker.numbered("src", 2, 300)
    even, odd, dead = broker.topic("even", 3), broker.topic("odd", 1), broker.topic("dead", 2)

    def process(df):
        number = fn.split_part(fn.col("value").cast("string"), fn.lit(":"), fn.lit(2)).cast("int")
        return df.select(
            "value",
            fn.when(number % 10 == 0, fn.lit(dead))
            .when(number % 2 == 0, fn.lit(even))
            .otherwise(fn.lit(odd))
            .alias("topic"),
            fn.when(number % 10 == 0, fn.lit(1)).alias("partition"),
        )

    manifest, _ = run(broker, spark, broker.spec(source, None), process)
    written = {t: [r.value.decode().split(":")[1] for r in committed(broker, t)] for t in (even, odd, dead)}
    numbers = [str(i) for i in range(300)] * 2
    assert Counter(written[dead]) == Counter(n for n in numbers if int(n) % 10 == 0)
    assert Counter(written[even]) == Counter(n for n in numbers if int(n) % 2 == 0 and int(n) % 10)
    assert Counter(written[odd]) == Counter(n for n in numbers if int(n) % 2)
    assert {r.partition for r in committed(broker, dead)} == {1}
    assert {t.topic for t in manifest.targets} == {even, odd, dead}


def test_with_a_sink_topic_rows_may_still_name_another_one(broker, spark, fn):
    """An unchanged topic column of the source means the sink; so does null."""
    source, sink, dead = broker.numbered("src", 1, 90), broker.topic("out", 1), broker.topic("dead", 1)

    def process(df):
        third = fn.col("offset") % 3
        topic = fn.when(third == 0, fn.lit(dead)).when(third == 1, fn.col("topic"))
        return df.withColumn("topic", topic)

    run(broker, spark, broker.spec(source, sink), process)
    assert len(committed(broker, sink)) == 60
    assert len(committed(broker, dead)) == 30
    assert len(committed(broker, source)) == 90


def test_topics_are_told_apart_by_case_whatever_the_collation_of_their_column(broker, spark, fn):
    """Both topics exist; a case-insensitive collation would take one for the other, the source."""
    source, sink = broker.topic("src", 1), broker.topic("out", 1)
    other = source.upper()
    broker._admin.create_topics([NewTopic(other, 1)])[other].result(30)
    broker.produce(source, [{"value": b"v"}])

    def process(df):
        named = fn.expr(f"collate('{other}', 'UTF8_LCASE')")
        return df.select("value", named.alias("topic"))

    run(broker, spark, broker.spec(source, sink), process)
    assert [record.value for record in committed(broker, other)] == [b"v"]
    assert committed(broker, sink) == []


def test_a_row_wise_transform_keeps_the_order_of_each_source_partition(broker, spark, fn, monkeypatch):
    """Ten source partitions, each read by four tasks, on two cores."""
    source, sink = broker.numbered("src", 10, 1000), broker.topic("out", 3)
    seal_in_tasks(monkeypatch, 40)
    run(broker, spark, broker.spec(source, sink), lambda df: df.select("key", "value").filter("true"))
    assert out_of_order(broker, source, sink) == []
    assert len(committed(broker, sink)) == 10_000


def test_a_transform_with_a_shuffle_is_written_completely(broker, spark, fn):
    """Aggregates have no source order, but each result is written once."""
    source, sink = broker.numbered("src", 3, 970), broker.topic("out", 2)

    def process(df):
        return df.groupBy("key").agg(fn.count("*").cast("string").alias("value"))

    run(broker, spark, broker.spec(source, sink), process)
    assert {r.key: r.value for r in committed(broker, sink)} == {b"k%d" % i: b"30" for i in range(97)}


def test_an_empty_range_is_sealed_and_sent_as_nothing(broker, spark):
    """Law 8: a run without output succeeds."""
    source, sink = broker.numbered("src", 1, 10), broker.topic("out", 1)
    plan = RunPlan("explicit", (OffsetRange(source, 0, 5, 5),), {}, "g", advances=False)
    manifest, receipts = run(broker, spark, broker.spec(source, sink), lambda df: df, plan)
    assert (manifest.targets, list(receipts)) == ((), [])
    assert manifest.records_read == {TopicPartition(source, 0): 0}


def test_a_range_is_read_exactly(broker, spark):
    """[start, end) in the middle of batches."""
    source, sink = broker.numbered("src", 1, 1000), broker.topic("out", 1)
    plan = RunPlan("explicit", (OffsetRange(source, 0, 123, 877),), {}, "g", advances=False)
    run(broker, spark, broker.spec(source, sink), lambda df: df, plan)
    assert [r.value for r in committed(broker, sink)] == [b"0:%d" % i for i in range(123, 877)]


def test_sealed_batches_can_be_sent_again_under_a_new_identity(broker, spark):
    """After an abort nothing is recomputed, and nothing of the first send is visible."""
    source, sink = broker.numbered("src", 2, 500), broker.topic("out", 2)
    plane = SparkDataPlane(spark, broker.spec(source, sink), lambda df: df)
    sealed = plane.seal(broker.plan(source))

    with broker.transaction(sealed.manifest.partitions, commit=False) as identity:
        plane.send(sealed, identity, 60)
    assert committed(broker, sink) == []
    with broker.transaction(sealed.manifest.partitions) as identity:
        plane.send(sealed, identity, 60)
    plane.release(sealed)
    assert len(committed(broker, sink)) == 1000


# -- what is read -----------------------------------------------------------------------------------------


def test_the_source_has_the_columns_of_sparks_own_kafka_source(broker, spark):
    """Names, types and values; timestamps do not depend on the session's time zone."""
    source = broker.topic("src", 1)
    broker.produce(source, [{"key": b"k", "value": b"v", "timestamp": START, "headers": [("h", None)]}])
    config, ranges = ClientConfig.of(broker.config), [OffsetRange(source, 0, 0, 1)]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        df = source_frame(spark, config, [ranges])
        assert df.schema.simpleString() == COLUMNS
        (row,) = df.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (
        b"k",
        b"v",
        source,
        0,
        0,
    )
    assert (row.ms, row.timestampType) == (START, 0)
    assert [(h.key, h.value) for h in row.headers] == [("h", None)]


def test_missing_headers_reach_the_seal_as_empty_lists(spark):
    """Arrow's Java code walks over all null lists of a batch when Spark measures it, after each row."""
    headers = "if(id = 0, null, array(struct('k' AS key, binary('x') AS value))) AS headers"
    frame = spark.range(2).selectExpr("'v' AS value", headers)
    assert [len(row.headers) for row in sink_columns(frame, "out", ()).orderBy("headers").collect()] == [0, 1]


def test_credentials_are_in_no_plan(broker, spark, capfd):
    """Neither explain nor the plan's own text shows the client configuration."""
    source = broker.numbered("src", 1, 5)
    config = ClientConfig.of({**broker.config, "sasl.password": "TOPSECRET"})
    df = source_frame(spark, config, [[OffsetRange(source, 0, 0, 5)]])
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        df.explain(mode=mode)
    shown = capfd.readouterr().out + repr(df) + str(df.schema)
    assert "ReadTask" in shown
    assert "TOPSECRET" not in shown
    assert broker.bootstrap not in shown
    assert df.count() == 5


def test_a_range_below_the_log_start_is_data_loss(broker, spark):
    """No reset: the task's own error reaches the driver."""
    source, sink = broker.numbered("src", 1, 100), broker.topic("out", 1)
    broker.delete_head(source, 0, 40)
    plan = RunPlan("explicit", (OffsetRange(source, 0, 10, 100),), {}, "g", advances=False)
    with pytest.raises(OffsetsOutOfRange, match="40"):
        SparkDataPlane(spark, broker.spec(source, sink), lambda df: df).seal(plan)


def test_a_batch_whose_codec_is_not_installed_is_named(broker, spark, monkeypatch):
    """A source may have lz4 batches whatever the sink's codec; the error says where and what to install."""
    source, sink = broker.topic("src", 1), broker.topic("out", 1)
    producer = Producer({**broker.config, "compression.type": "lz4", "linger.ms": 100})
    for number in range(50):
        producer.produce(source, b"value %d" % number)
    producer.flush(30)

    class WithoutLz4(ReadTask):  # a local class: it goes to the worker by value
        def __call__(self, batches):
            with mock.patch.dict(sys.modules, {"lz4": None}):
                yield from ReadTask.__call__(self, batches)

    monkeypatch.setattr("airflow_eos.spark.source.ReadTask", WithoutLz4)
    plan = RunPlan("explicit", (OffsetRange(source, 0, 0, 50),), {}, "g", advances=False)
    wanted = rf"{source}-0 at offset 0 cannot be read: lz4 is not installed on .* install the package lz4"
    with pytest.raises(EnvironmentMismatch, match=wanted):
        SparkDataPlane(spark, broker.spec(source, sink), lambda df: df).seal(plan)


def test_rows_are_routed_to_the_partition_of_their_number(spark, fn):
    """With repartitionById and, for Spark 4.0, by hash keys."""
    rows = spark.range(1000).select((fn.col("id") % 7).cast("int").alias("owner"))
    for send in (route, route_by_hash):
        placed = send(rows, 7).select("owner", fn.spark_partition_id().alias("place")).distinct().collect()
        assert sorted((r.owner, r.place) for r in placed) == [(i, i) for i in range(7)]


# -- counts -----------------------------------------------------------------------------------------------


def test_records_read_and_late_records_are_counted(broker, spark, fn):
    """Per source partition, although the transform drops rows and shuffles."""
    source, sink = broker.topic("src", 3), broker.topic("out", 1)
    broker.produce(
        source,
        (
            {"value": b"x", "partition": p, "timestamp": START + (-1 if i < p else i)}
            for p in range(3)
            for i in range(100 * (p + 1))
        ),
    )
    start = dt.datetime.fromtimestamp(START / 1000, dt.timezone.utc)
    spec = broker.spec(source, sink, ranges=Interval(start, start + dt.timedelta(hours=1)))

    def process(df):
        df.limit(1).collect()  # another action, before ours
        return df.groupBy("partition").agg(fn.count("*").cast("string").alias("value")).drop("partition")

    manifest, _ = run(broker, spark, spec, process, broker.plan(source, mode="interval"))
    assert manifest.records_read == {TopicPartition(source, p): 100 * (p + 1) for p in range(3)}
    assert manifest.records_late == 0 + 1 + 2


def test_records_that_spark_reads_twice_are_counted_once_or_not_at_all(broker, spark, fn, topics):
    """A sort reads them for a sample, and again: on Spark Connect both are observed."""
    sealed = seal(broker, spark, topics, lambda df: df.orderBy("offset"))
    count = NOT_COUNTED if CONNECT else 200
    assert sealed.manifest.records_read == {TopicPartition(topics[0], place): count for place in (0, 1)}


def test_a_transform_that_ignores_its_input_is_no_error(broker, spark, fn):
    """Unavailable counts are -1, and the run continues."""
    source, sink = broker.numbered("src", 1, 5), broker.topic("out", 1)
    manifest, _ = run(
        broker, spark, broker.spec(source, sink), lambda df: spark.range(3).selectExpr("'x' AS value")
    )
    assert manifest.records == 3
    assert manifest.records_read == {TopicPartition(source, 0): NOT_COUNTED}


@pytest.mark.skipif(
    CONNECT, reason="Spark Connect has no accumulators: it observes rows, wherever they are read"
)
def test_a_slice_counts_once_and_only_if_it_was_read_to_its_end(broker, spark):
    """Spark may read it twice, or stop in the middle."""
    source, sink = broker.topic("src", 2), broker.topic("out", 1)
    large = ({"value": b"x" * 1000, "partition": 0} for _ in range(20_000))
    broker.produce(source, (*large, *({"value": b"small", "partition": 1} for _ in range(10))))

    def twice(df):
        return df.where("partition = 1").union(df.where("partition = 1")).select("value")

    manifest, _ = run(broker, spark, broker.spec(source, sink), twice)
    assert manifest.records == 20
    assert manifest.records_read == {TopicPartition(source, 0): 20_000, TopicPartition(source, 1): 10}

    def some(df):
        return df.limit(5).select("value")

    manifest, _ = run(broker, spark, broker.spec(source, sink), some)
    assert manifest.records == 5
    assert manifest.records_read[TopicPartition(source, 0)] == NOT_COUNTED


# -- bad input: a clear error, before any write -----------------------------------------------------------


@pytest.fixture(scope="module")
def topics(broker):
    return broker.numbered("src", 2, 200), broker.topic("out", 2)


def seal(broker, spark, topics, process, sink="sink"):
    source, out = topics
    plane = SparkDataPlane(spark, broker.spec(source, out if sink == "sink" else sink), process)
    return plane.seal(broker.plan(source))


MEANING = {
    "timestamps without a time zone": {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Asia/Seoul",
    },
    "another time zone": {"spark.sql.session.timeZone": "America/St_Johns"},
    "ANSI with reserved words": {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    },
    "not ANSI": {"spark.sql.ansi.enabled": "false", "spark.sql.storeAssignmentPolicy": "LEGACY"},
    "case": {"spark.sql.caseSensitive": "TRUE"},
    "small batches of large types": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    },
    "all columns nullable, in Java's old dates": {
        "spark.sql.datetime.java8API.enabled": "false",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.keepCommandOutputSchema": "true",
    },
    "char and varchar": {
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.castComplexTypesToString.enabled": "true",
        "spark.sql.legacy.setopsPrecedence.enabled": "true",
    },
}


@pytest.fixture
def setting(spark):
    """Change settings of the session, and restore them."""
    before = {}

    def put(settings):
        for name, value in settings.items():
            before[name] = spark.conf.get(name, None)
            spark.conf.set(name, value)

    yield put
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.mark.parametrize("settings", rest_in_chaos(3, MEANING.values()), ids=MEANING)
def test_settings_of_the_session_change_nothing_in_what_is_read_and_written(broker, spark, setting, settings):
    """Kafka's timestamps are instants, in source and sink, whatever ``timestamp`` means in the session."""
    source, sink = broker.topic("src", 1), broker.topic("out", 1)
    headers = [("h", b"x"), ("null", None)]
    times = [START, START + 1, START + 3_599_999]
    broker.produce(
        source,
        [{"key": b"k", "value": b"v", "timestamp": moment, "headers": headers} for moment in times],
    )
    setting(settings)
    seen = []

    def identity(df):
        seen.append(df.schema.simpleString())
        return df.filter(df.timestamp.isNotNull())

    run(broker, spark, broker.spec(source, sink), identity)
    assert seen == [COLUMNS]
    written = committed(broker, sink)
    assert [record.timestamp for record in written] == times
    assert [(r.key, r.value, r.headers) for r in written] == [
        (r.key, r.value, r.headers) for r in committed(broker, source)
    ]


def test_columns_of_nulls_pass_where_spark_compresses_batches_with_lz4(broker, spark, setting):
    """PyArrow cannot read them; here neither records nor trailers of partitions without any have bytes."""
    source, sink = broker.topic("src", 1), broker.topic("out", 3)
    broker.produce(source, [{"key": b"k", "value": None}] * 10)
    lz4 = {"spark.sql.execution.arrow.compression.codec": "lz4"}

    def sets_it(df):
        setting(lz4)
        return df

    run(broker, spark, broker.spec(source, sink), sets_it)
    run(broker, spark, broker.spec(source, sink), lambda df: df)
    assert [(r.key, r.value) for r in committed(broker, sink)] == [(b"k", None)] * 20
    assert spark.conf.get(*lz4) == "lz4"


def test_rows_come_once_where_spark_splits_the_batches_of_python(broker, spark, setting):
    """Spark 4.2 itself makes 198 rows of 100 that an identity ``mapInArrow`` yields."""
    source, sink = broker.numbered("src", 1, 10), broker.topic("out", 1)
    split = {"spark.sql.execution.arrow.maxRecordsPerOutputBatch": "3"}

    def sets_it(df):
        setting(split)
        return df

    run(broker, spark, broker.spec(source, sink), sets_it)
    run(broker, spark, broker.spec(source, sink), lambda df: df)
    assert [record.value for record in committed(broker, sink)] == [b"0:%d" % i for i in range(10)] * 2
    assert spark.conf.get(*split) == "3"


@pytest.mark.parametrize("cast", rest_in_chaos(1, ["timestamp_ntz", "timestamp", "timestamp_ltz"]))
def test_a_local_time_is_one_of_the_session_where_timestamp_means_that(broker, spark, setting, cast):
    """Cast to timestamp, to an instant or to a local time: the instant that it came from is written."""
    source, sink = broker.topic("src", 1), broker.topic("out", 1)
    broker.produce(source, [{"key": b"k", "value": b"v", "timestamp": START}])
    setting(MEANING["timestamps without a time zone"])
    run(
        broker,
        spark,
        broker.spec(source, sink),
        lambda df: df.withColumn("timestamp", df.timestamp.cast(cast)),
    )
    assert [record.timestamp for record in committed(broker, sink)] == [START]


def test_a_local_time_is_refused_elsewhere_with_the_cast_that_helps(spark, broker, topics):
    """Where timestamps are instants, no time zone is guessed."""

    def local(df):
        return df.withColumn("timestamp", df.timestamp.cast("timestamp_ntz"))

    def instant(df):
        times = local(df)
        return times.withColumn("timestamp", times.timestamp.cast("timestamp_ltz"))

    with pytest.raises(ProcessFailed, match=r"'timestamp' as timestamp_ntz.*\.cast\('timestamp_ltz'\)"):
        seal(broker, spark, topics, local)
    assert seal(broker, spark, topics, instant).manifest.records == 400


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["key"], "no column 'value'"),
        (["1 AS value"], "'value' as int"),
        (["value", "1.5 AS key"], "'key' as decimal"),
        (["value", "1 AS topic"], "'topic' as int"),
        (["value", "'1' AS partition"], "'partition' as string"),
        (["value", "'x' AS headers"], "'headers' as string"),
        (["value", "timestamp_ntz'2026-01-01 00:00:00' AS timestamp"], "'timestamp' as timestamp_ntz"),
        (["value", "value"], "two columns named 'value'"),
    ],
)
def test_columns_the_sink_cannot_write_are_refused(broker, spark, topics, columns, message):
    """The error names column, type and remedy."""
    with pytest.raises(ProcessFailed, match=message):
        seal(broker, spark, topics, lambda df: df.selectExpr(*columns))


def test_a_record_that_the_transform_quotes_cannot_choose_the_error(broker, spark, topics):
    """The run fails with the transform's error, on the line that quoted it."""
    forged = 'airflow-eos-error:{"type": "ProducerFenced", "message": "forged"}'

    def quoting(rows):
        for _ in rows:
            raise ValueError(f"bad record {forged}")
        yield from ()

    with pytest.raises(ProcessFailed, match="ValueError: bad record airflow-eos-error"):
        seal(broker, spark, topics, lambda df: df.mapInArrow(quoting, "value binary"))


def test_column_names_are_case_insensitive_as_everywhere_in_spark(broker, spark, topics):
    """Spark's own sink finds them too."""
    sealed = seal(broker, spark, topics, lambda df: df.selectExpr("value AS Value", "key AS KEY"))
    assert sealed.manifest.records == 400


def test_a_function_that_returns_no_data_frame_is_refused(broker, spark, topics):
    """The most common mistake: a missing return."""
    with pytest.raises(ProcessFailed, match="returned NoneType"):
        seal(broker, spark, topics, lambda df: None)
    with pytest.raises(
        ProcessFailed, match=r"returned a pyspark.*\.Column; it must return a Spark DataFrame"
    ):
        seal(broker, spark, topics, lambda df: df.value)


def test_a_missing_topic_is_refused(broker, spark, topics):
    """There is neither a sink topic nor a column."""
    with pytest.raises(ProcessFailed, match="no sink topic"):
        seal(broker, spark, topics, lambda df: df.select("value"), sink=None)


def test_an_unknown_sink_topic_is_refused(broker, spark, topics):
    """No topic is created by accident."""
    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-topic"):
        seal(broker, spark, topics, lambda df: df, sink="no-such-topic")


def test_an_unknown_topic_in_a_row_is_refused(broker, spark, topics):
    """As for the sink topic."""
    with missing_at_once(), pytest.raises(UnknownTopic, match="no-such-topic"):
        seal(broker, spark, topics, lambda df: df.selectExpr("value", "'no-such-topic' AS topic"))


REFUSED_VALUES = {
    "if(offset = 1, 7, 0) AS partition": "partition 7, and topic",
    "array(struct(if(offset = 1, null, 'a') AS key, value)) AS headers": "header without a key",
    "if(offset = 1, 'two words', '{out}') AS topic": "the 'topic' 'two words': Kafka allows no such name",
    "if(offset = 1, null, '{out}') AS topic": "'topic' is null",
}


@pytest.mark.parametrize("column", rest_in_chaos(2, REFUSED_VALUES))
def test_a_value_that_the_sink_cannot_write_is_named_with_its_record(broker, spark, topics, column):
    """As a record's content may be: another try would meet the same record."""
    source, out = broker.numbered("src", 1, 3), topics[1]
    sink = None if column.endswith("topic") else out
    plane = SparkDataPlane(
        spark, broker.spec(source, sink), lambda df: df.selectExpr("value", column.format(out=out))
    )
    with pytest.raises(RecordRefused, match=REFUSED_VALUES[column]) as refused:
        plane.seal(broker.plan(source))
    assert f"The record was read at {source}-0, offset 1" in str(refused.value)
    assert is_final(refused.value)


def test_a_record_larger_than_the_topic_allows_is_refused_before_the_transaction(broker, spark, topics, fn):
    """By the topic's own max.message.bytes."""
    small = broker.topic("small", 1, **{"max.message.bytes": "2000"})
    noise = fn.concat(*[fn.sha2(fn.concat(fn.col("value"), fn.lit(str(i))), 512) for i in range(60)])
    with pytest.raises(RecordTooLarge, match=small):
        seal(broker, spark, topics, lambda df: df.limit(1).select(noise.alias("value")), sink=small)


def test_a_function_without_memory_does_not_advise_to_skip_a_record(broker, spark, topics, fn):
    """Other records would fail in the same way, and following the advice would lose a valid one."""

    def parse(value):
        if value == b"1:150":
            raise MemoryError
        return value

    with pytest.raises(ProcessFailed, match="MemoryError") as caught:
        seal(broker, spark, topics, lambda df: df.select(fn.udf(parse, "binary")("value").alias("value")))
    assert f"process failed at {topics[0]}-1, offset 150" in str(caught.value)
    assert "skip_offsets" not in str(caught.value)


def test_a_transform_that_fails_on_one_record_says_what_and_where(broker, spark, topics, fn):
    """One line: the author's exception and the author's line of code."""

    def parse(value):
        if value == b"1:150":
            raise ValueError(f"cannot parse {value!r}")
        return value

    with pytest.raises(
        ProcessFailed, match=r"ValueError: cannot parse .*1:150.*test_spark_data_plane.py"
    ) as caught:
        seal(broker, spark, topics, lambda df: df.select(fn.udf(parse, "binary")("value").alias("value")))
    text, source = str(caught.value), topics[0]
    assert f"process failed at {source}-1, offset 150, nothing was written" in text
    assert f'skip_offsets=[["{source}", 1, 150, 151]]' in text
    assert "\n" not in text
    shown = "".join(traceback.format_exception(caught.value))
    assert "org.apache.spark" not in shown
    assert committed(broker, topics[1]) == []


def test_a_transform_that_fails_behind_a_shuffle_names_the_record_too(broker, spark, topics, fn):
    """The failing task has read nothing itself: parts are processed again until one record is left."""

    def parse(value):
        if value == b"0:77":
            raise ValueError("no number")
        return value

    def process(df):
        parsed = df.repartition(3, "value").select(fn.udf(parse, "binary")("value").alias("value"))
        return parsed.groupBy("value").count().select("value")

    with pytest.raises(ProcessFailed, match=f"process failed at {topics[0]}-0, offset 77, nothing was"):
        seal(broker, spark, topics, process)


def test_a_transform_that_fails_on_no_record_alone_names_none(broker, spark, topics):
    """No record is blamed for a failure that needs all records, or none."""
    number = len(committed(broker, topics[0]))
    needs_all = f"cast(1 / (count(*) - {number}) AS string) AS value"
    for expression in (needs_all, "cast(1 / (count(*) - count(*)) AS string) AS value"):
        with pytest.raises(ProcessFailed, match=r"process failed, nothing was written: .*DIVIDE_BY_ZERO"):
            seal(broker, spark, topics, lambda df, text=expression: df.selectExpr(text))


def test_a_failing_expression_says_what(broker, spark, topics):
    """Spark's own error, without its stack trace."""
    with pytest.raises(ProcessFailed, match="DIVIDE_BY_ZERO") as caught:
        seal(broker, spark, topics, lambda df: df.selectExpr("cast(1 / (offset - 7) AS string) AS value"))
    assert "\n" not in str(caught.value)


def test_a_function_that_raises_on_the_driver_says_where(broker, spark, topics):
    """Before any task runs."""

    def process(df):
        raise KeyError("flight")

    with pytest.raises(
        ProcessFailed, match=r"KeyError: 'flight' \(.*test_spark_data_plane.py, line \d+, in process"
    ):
        seal(broker, spark, topics, process)


def test_an_unknown_column_says_which(broker, spark, topics):
    """Connect detects it later than a classic session; the message is the same."""
    with pytest.raises(ProcessFailed, match=r"UNRESOLVED_COLUMN.*nope"):
        seal(broker, spark, topics, lambda df: df.select("nope"))


def test_a_function_that_cannot_be_serialised_says_why(broker, spark, topics, fn):
    """Locks and connections cannot be sent to executors."""
    lock = threading.Lock()

    def locked(value):
        with lock:
            return value

    with pytest.raises(ProcessFailed, match=r"cannot pickle '_thread.lock'"):
        seal(broker, spark, topics, lambda df: df.select(fn.udf(locked, "binary")("value").alias("value")))


def test_a_frame_of_another_session_is_refused_where_its_jobs_could_not_be_cancelled(broker, spark, topics):
    """A classic application cancels the jobs of all its sessions, a Spark Connect session its own."""
    other = type(spark)(spark.client._builder) if CONNECT else spark.newSession()
    refused = pytest.raises(ProcessFailed, match=r"another Spark Connect session.*df\.sparkSession")
    with refused if CONNECT else nullcontext():
        sealed = seal(broker, spark, topics, lambda _: other.createDataFrame([(b"v",)], "value binary"))
        assert sealed.manifest.records == 1
    if CONNECT:
        other.client.release_session()
        other.client.close()


def test_a_run_computes_in_its_own_session_whichever_is_active(broker, spark, topics):
    """The first of several sessions may have lost its server; the function checkpoints, too."""
    other = type(spark)(spark.client._builder) if CONNECT else spark.newSession()
    sink = broker.topic("out", 1)
    spec = broker.spec(topics[0], sink)
    run(broker, other, spec, lambda df: df.select("key", "value").localCheckpoint())
    assert count_records(broker.bootstrap, sink) == 400
    assert type(spark).getActiveSession() is not other
    if CONNECT:
        other.client.release_session()
        other.client.close()


@pytest.mark.parametrize(
    ("level", "repeatable", "refused"),
    [
        ("MEMORY_ONLY", "false", True),
        ("MEMORY_ONLY_2", "false", True),
        ("MEMORY_ONLY", "true", False),
        ("MEMORY_AND_DISK", "false", False),
    ],
)
def test_a_cache_in_memory_only_is_refused(broker, spark, setting, topics, level, repeatable, refused):
    """Spark recomputes blocks that do not fit; the author may declare that this gives the same rows."""
    from pyspark import StorageLevel

    setting({REPEATABLE: repeatable, "spark.sql.maxPlanStringLength": "50"})
    cached = []

    def process(df):
        kept = df.select("value").persist(getattr(StorageLevel, level))
        cached.append(kept)
        return kept.union(kept)

    expected = pytest.raises(ConfigurationError, match=f"in memory only.*localCheckpoint.*{REPEATABLE}=true")
    with expected if refused else nullcontext():
        seal(broker, spark, topics, process)
    cached.pop().unpersist()


# -- sending ----------------------------------------------------------------------------------------------


def test_every_owner_task_is_started_once(broker, spark, topics, tmp_path, monkeypatch):
    """Law 1 begins with Spark: one job, one stage, one attempt per task, on Connect as well."""
    from airflow_eos.spark import send_task as send_module

    class CountedSend(send_module.SendTask):
        def __call__(self, batches):
            import pathlib
            import uuid

            from pyspark import TaskContext

            context = TaskContext.get()
            name = f"{context.stageId()}.{context.partitionId()}.{context.attemptNumber()}.{uuid.uuid4().hex}"
            (pathlib.Path(str(tmp_path)) / name).touch()
            return send_module.SendTask.__call__(self, batches)

    plane = SparkDataPlane(spark, broker.spec(*topics), lambda df: df)
    sealed = plane.seal(broker.plan(topics[0]))
    monkeypatch.setattr(send_module, "SendTask", CountedSend)
    with broker.transaction(sealed.manifest.partitions, commit=False) as identity:
        plane.send(sealed, identity, 60)
    started = sorted(tuple(map(int, path.name.split(".")[:3])) for path in tmp_path.iterdir())
    stages = {stage for stage, _, _ in started}
    assert len(stages) == 1
    assert [(task, attempt) for _, task, attempt in started] == [(0, 0), (1, 0)]


def test_a_large_output_is_sorted_by_spark_and_streamed(broker, spark, monkeypatch):
    """The result and its order are the same, without holding an owner's batches in memory."""
    source, sink = broker.numbered("src", 4, 2000), broker.topic("out", 5)
    monkeypatch.setattr("airflow_eos.spark.data_plane.STREAMED_FROM", 0)
    seal_in_tasks(monkeypatch, 16)
    run(broker, spark, broker.spec(source, sink), lambda df: df.select("key", "value"))
    assert out_of_order(broker, source, sink) == []
    assert len(committed(broker, sink)) == 8000


def test_a_fenced_identity_writes_nothing_that_can_be_seen(broker, spark, topics):
    """Error 47 in the tasks is ProducerFenced on the driver."""
    sink = broker.topic("out", 2)
    plane = SparkDataPlane(spark, broker.spec(topics[0], sink), lambda df: df)
    sealed = plane.seal(broker.plan(topics[0]))
    with broker.transaction(sealed.manifest.partitions, commit=False) as identity:
        broker.fence(identity.transactional_id)
        caught = attempt(plane.send, sealed, identity, 60)
    assert type(caught) is ProducerFenced
    assert committed(broker, sink) == []


def test_partitions_outside_the_transaction_are_not_written(broker, spark, topics):
    """The brokers refuse, and the driver raises one error of this package."""
    sink = broker.topic("out", 2)
    plane = SparkDataPlane(spark, broker.spec(topics[0], sink), lambda df: df)
    sealed = plane.seal(broker.plan(topics[0]))
    with broker.transaction([TopicPartition(sink, 0)], commit=False) as identity:
        caught = attempt(plane.send, sealed, identity, 60)
    assert isinstance(caught, SendError)
    assert f"{sink}-1" in str(caught)
    assert committed(broker, sink) == []


def test_the_session_is_left_as_it_was(broker, spark, topics):
    """This includes settings, tags, and on Connect the client's retries."""
    from airflow_eos.spark.session import tagged

    def state():
        client = (
            [spark.client._stub, spark.client._use_reattachable_execute, spark.client.get_retry_policies()]
            if CONNECT
            else []
        )
        keys = ("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.shuffle.partitions")
        return [*(spark.conf.get(k) for k in keys), spark.getTags(), *client]

    before = state()
    run(broker, spark, broker.spec(*topics), lambda df: df)
    assert state() == before
    with tagged(spark, "outer"), tagged(spark, "inner"):
        assert not CONNECT or spark.client._stub is not before[3]
    with tagged(spark, "outer", once=True), tagged(spark, "inner", once=True):
        assert not CONNECT or state()[-2:] == [False, []]
    assert state() == before


def test_batches_of_large_rows_are_bounded_by_their_bytes(broker, spark):
    """With nested columns, too; a batch that exceeds the JVM's memory ends the JVM.

    The bound is Spark's own: 64 MB in 4.2, 256 MB in 4.0.
    """
    source, sink = broker.numbered("src", 1, 100), broker.topic("out", 1)
    columns = "value string, headers array<struct<key:string,value:binary>>"

    def count_rows(batches):
        import pyarrow as pa

        for batch in batches:
            yield batch.set_column(0, "value", pa.array([str(batch.num_rows)] * batch.num_rows))

    def process(df):
        return df.selectExpr("repeat('x', 1000000) value", "headers").mapInArrow(count_rows, columns)

    run(broker, spark, broker.spec(source, sink), process)
    sizes = [int(record.value) for record in read_topic(broker.bootstrap, sink)]
    assert len(sizes) == 100
    most_bytes = spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch")
    assert (max(sizes) - 1) * 1_000_000 < int(most_bytes.removesuffix("b"))


@pytest.mark.skipif(CONNECT, reason="a client does not see the server's blocks")
def test_sealed_batches_are_on_disk_and_take_no_heap(broker, spark, topics):
    """In memory, 600 MB of them ended a JVM with Spark's default heap of 1 GB."""

    def blocks():
        held = spark.sparkContext._jsc.sc().getRDDStorageInfo()
        return {rdd.id(): (rdd.memSize(), rdd.diskSize()) for rdd in held}

    before = blocks()
    plane = SparkDataPlane(spark, broker.spec(*topics), lambda df: df)
    sealed = plane.seal(broker.plan(topics[0]))
    added = {number: sizes for number, sizes in blocks().items() if number not in before}
    plane.release(sealed)
    assert len(added) == 1
    ((in_memory, on_disk),) = added.values()
    assert (in_memory, on_disk > 0) == (0, True)


def test_released_blocks_are_gone_and_a_send_says_so(broker, spark, topics):
    """As if their executor had died: the protocol seals again."""
    plane = SparkDataPlane(spark, broker.spec(*topics), lambda df: df)
    sealed = plane.seal(broker.plan(topics[0]))
    plane.release(sealed)
    with broker.transaction(sealed.manifest.partitions, commit=False) as identity:
        caught = attempt(plane.send, sealed, identity, 60)
    assert type(caught) is SealedBlockLost


def test_a_checkpoint_of_the_function_that_lost_blocks_is_made_again(broker, spark):
    """As if their executor had died: the error blames neither function nor record."""
    source, sink = broker.numbered("src", 2, 50), broker.topic("out", 2)
    checkpoints = []

    def process(df):
        checkpoints.append(df.select("key", "value").localCheckpoint())
        if len(checkpoints) == 1:
            free_checkpoint(checkpoints[0])
        return checkpoints[-1]

    run(broker, spark, broker.spec(source, sink), process)
    assert len(checkpoints) == 2
    assert count_records(broker.bootstrap, sink) == 100


@pytest.mark.parametrize("streamed_from", [0, 1 << 30])
def test_batches_of_another_seal_are_not_sent(broker, spark, fn, monkeypatch, streamed_from):
    """All counts match, as with another copy of a block: only attempt numbers differ. It is sealed again."""
    monkeypatch.setattr("airflow_eos.spark.data_plane.STREAMED_FROM", streamed_from)
    source, sink = broker.numbered("src", 2, 200), broker.topic("out", 2)

    def process(df):
        return df.select("key", fn.rand().cast("string").alias("value"))

    plane = SparkDataPlane(spark, broker.spec(source, sink), process)
    counted, other = (plane.seal(broker.plan(source)) for _ in range(2))
    assert [t.records for t in counted.manifest.targets] == [t.records for t in other.manifest.targets]
    with broker.transaction(counted.manifest.partitions, commit=False) as identity:
        caught = attempt(plane.send, replace(counted, blocks=other.blocks), identity, 60)
    assert type(caught) is SealedBlockLost
    assert "counted those of attempt" in str(caught)
    assert read_topic(broker.bootstrap, sink, isolation="read_uncommitted") == []


def test_a_send_task_that_waits_for_brokers_is_not_idle(broker, spark, setting, monkeypatch):
    """It answers when all is sent: Spark would kill each attempt that sends for longer than the time-out."""
    from airflow_eos.spark import send_task as send_module

    class SlowSend(send_module.SendTask):
        def __call__(self, batches):
            time.sleep(2.5)
            return send_module.SendTask.__call__(self, batches)

    monkeypatch.setattr(send_module, "SendTask", SlowSend)
    source, sink = broker.numbered("src", 1, 10), broker.topic("out", 1)
    plane = SparkDataPlane(spark, broker.spec(source, sink), lambda df: df)
    sealed = plane.seal(broker.plan(source))
    idle = "spark.sql.execution.pyspark.udf"
    setting({f"{idle}.idleTimeoutSeconds": "1", f"{idle}.killOnIdleTimeout": "true"})
    with broker.transaction(sealed.manifest.partitions) as identity:
        (receipt,) = plane.send(sealed, identity, 60)
    assert receipt.records == 10


def slow_process(fn, marker, seconds):
    """Return a process that takes ``seconds`` per record and creates a marker file at its first one."""

    @fn.udf("binary")
    def slow(value):
        marker.touch()
        time.sleep(seconds)
        return value

    return lambda df: df.select(slow("value").alias("value"))


def sealing_thread(plane, plan):
    """Seal in a thread; return the thread and a container for its error."""
    caught = []

    def body():
        try:
            plane.seal(plan)
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, caught


def test_cancel_ends_this_runs_jobs_and_no_others(broker, spark, topics, fn, tmp_path):
    """From another thread, within seconds, whatever tags the function clears; the session goes on."""
    marker = tmp_path / "begun"
    slow = slow_process(fn, marker, 1.5)

    def process(df):
        (spark.clearTags if CONNECT else spark.sparkContext.clearJobTags)()
        return slow(df)

    plane = SparkDataPlane(spark, broker.spec(*topics), process)
    plan = broker.plan(topics[0])
    preflight.check_environment(spark)
    thread, caught = sealing_thread(plane, plan)
    wait_until(marker.exists, 120)
    begun = time.monotonic()
    plane.cancel(5)
    thread.join(60)
    assert not thread.is_alive()
    assert [type(e) for e in caught] == [RunFailed]
    with pytest.raises(RunFailed, match="cancelled"):
        plane.seal(plan)
    assert spark.range(10).count() == 10
    assert time.monotonic() - begun < 60


def test_cancel_before_the_job_runs_ends_the_seal(broker, spark, topics, fn, tmp_path):
    """However early the cancellation is. Spark Connect may start the job nevertheless: see the limits."""
    process = slow_process(fn, tmp_path / "begun", 0.03 if CONNECT else 1.5)
    plane = SparkDataPlane(spark, broker.spec(*topics), process)
    plan = broker.plan(topics[0])
    preflight.check_environment(spark)
    thread, caught = sealing_thread(plane, plan)
    begun = time.monotonic()
    while thread.is_alive() and time.monotonic() - begun < 60:
        plane.cancel(5)
        thread.join(0.5)
    assert not thread.is_alive()
    assert [type(e) for e in caught] == [RunFailed]
    assert spark.range(10).count() == 10
    assert time.monotonic() - begun < 60


def test_a_worker_lost_while_executors_are_asked_is_no_mismatch(spark, monkeypatch):
    """The error does not advise to install anything: a retry may find other executors."""

    def dies(batches, modules):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(preflight.probe, "report", dies)
    monkeypatch.setattr(preflight, "has_drivers_modules", lambda _: False)
    with pytest.raises(RunFailed, match=r"ask the executors.*another try"):
        preflight._look(spark)


@pytest.mark.skipif(CONNECT, reason="a server's Python is asked by a job")
def test_a_local_session_says_without_a_job_what_the_job_says(spark, monkeypatch):
    """If it has its own Python files, which tasks would import first, the job checks versions."""
    local, by_job = preflight._local_reports(spark, probe.versions(our_modules())), preflight._ask(spark)
    assert local is not None
    assert [{**r, "executor": ""} for r in local] == [{**r, "executor": ""} for r in by_job]
    spark.addArtifacts(__file__, pyfile=True)
    assert preflight._local_reports(spark, {}) is None


def test_cancel_before_or_while_the_function_is_called_starts_no_job(broker, spark, topics, fn, tmp_path):
    """The function may run for long before Spark has anything to cancel."""
    marker = tmp_path / "begun"
    slow = slow_process(fn, marker, 1.5)

    def cancelled(df):
        plane.cancel(5)
        return slow(df)

    plane = SparkDataPlane(spark, broker.spec(*topics), cancelled)
    with pytest.raises(RunFailed, match="cancelled"):
        plane.seal(broker.plan(topics[0]))
    assert not marker.exists()
    with pytest.raises(RunFailed, match="cancelled"):
        plane.seal(broker.plan(topics[0]))


def test_the_log_tells_that_executors_are_asked(spark, caplog):
    """Without free cores the check waits for some."""
    caplog.set_level(logging.INFO, "airflow_eos.spark.stage_log")
    preflight._ask(spark)
    assert any("asking the executors for their versions: " in line for line in caplog.messages)


def test_executors_are_asked_once_per_session(broker, spark, topics, monkeypatch):
    """The second run of a session skips the check."""
    plan = broker.plan(topics[0])
    first = SparkDataPlane(spark, broker.spec(*topics), lambda df: df).seal(plan).manifest.versions
    monkeypatch.setattr("airflow_eos.spark.preflight._ask", lambda _: pytest.fail("asked again"))
    again = SparkDataPlane(spark, broker.spec(*topics), lambda df: df).seal(plan)
    assert again.manifest.versions == first
    assert first["application_id"]
    assert first["slots"] == 2
    assert first["connect"] is CONNECT


def test_long_stages_say_how_far_they_are(spark, caplog, fn, tmp_path):
    """A line with elapsed time and tasks."""
    from airflow_eos.spark.stage_log import progress

    caplog.set_level(logging.INFO, "airflow_eos.spark.stage_log")
    logged, end = tmp_path / "told", time.time() + 120

    def note(record):
        if "of 4 tasks done" in record.getMessage():
            logged.touch()
        return True

    @fn.udf("bigint")
    def slow(value):
        # The stage lasts until the log has a line on it.
        while not logged.exists() and time.time() < end:
            time.sleep(0.05)
        return value

    caplog.handler.addFilter(note)
    try:
        with progress(spark, "sealing", interval=0.2):
            spark.range(0, 8, 1, 4).select(slow("id")).collect()
    finally:
        caplog.handler.removeFilter(note)
    lines = [record.getMessage() for record in caplog.records]
    assert any("sealing: " in line and "of 4 tasks done" in line for line in lines)
    assert lines[-1].startswith("sealing: done in")


def test_a_function_of_two_arguments_learns_about_its_run(broker, spark, topics):
    """It gets ranges and names, but not the client configuration."""
    seen = []

    def process(df, run):
        seen.append(run)
        return df

    seal(broker, spark, topics, process)
    assert seen[0].source_topics == (topics[0],)
    assert [r.span for r in seen[0].ranges] == [200, 200]
