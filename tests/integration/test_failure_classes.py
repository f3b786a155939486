"""Failures are classed by their cause: whose they are, whether a retry helps, and which record it was.

Through the public API, on real brokers. Runs on a classic session here; :mod:`test_spark_connect` runs the
same tests on Spark Connect.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import tests.support.airflow_home  # noqa: F401 - before Airflow, which the modules below import
from airflow_eos import arrow_process, read_process_write
from airflow_eos.exceptions import (
    EnvironmentMismatch,
    ProcessFailed,
    RecordRefused,
    RecordTooLarge,
    RunFailed,
)
from airflow_eos.operators.author_signals import asked_of_airflow
from airflow_eos.operators.retriable import is_final
from airflow_eos.spark.lazy_data_plane import LazyDataPlane
from airflow_eos.spark.session import spark_version
from airflow_eos_testing import read_topic
from tests.support.cases import rest_in_chaos

NOW = int(time.time() * 1000)
DAY, HOUR = 86_400_000, 3_600_000
BAD = 5
"""Offset of the one bad record."""


@pytest.fixture
def fn(spark):
    from pyspark.sql import functions

    return functions


def spec_of(broker, source, sink, **changes):
    name = uuid.uuid4().hex[:8]
    return broker.spec(source, sink, pipeline=f"p-{name}", group_id=f"g-{name}", **changes)


def values(broker, topic):
    return [record.value for record in read_topic(broker.bootstrap, topic)]


def numbered(broker, bad=b"bad", partitions=1, **config):
    """A topic with ten records, one of them bad."""
    source = broker.topic("src", partitions, **config)
    broker.produce(
        source,
        ({"key": b"k", "value": bad if i == BAD else b"%d" % i, "partition": 0} for i in range(10)),
    )
    return source


def printable_line(line):
    return line.replace("\t", "").isprintable()


def error_of(broker, spark, process, source, sink=None, **changes):
    sink = sink or broker.topic("out")
    spec = spec_of(broker, source, sink, **changes)
    with pytest.raises(Exception) as caught:
        read_process_write(spark, spec, process)
    assert values(broker, sink) == []
    return caught.value


@pytest.mark.parametrize("kind", ["frame", "arrow"])
def test_executors_that_reach_another_cluster_read_nothing(broker, spark, monkeypatch, kind):
    """Their host resolves the brokers' name to other brokers, with records at the same offsets."""
    of_driver = property(lambda _: "the driver's", lambda *_: None)
    monkeypatch.setattr(LazyDataPlane, "cluster_id", of_driver, raising=False)
    process = arrow_process(lambda batch: batch) if kind == "arrow" else lambda df: df
    error = error_of(broker, spark, process, numbered(broker))
    assert isinstance(error, EnvironmentMismatch)
    assert "and those that the run's driver reaches of cluster the driver's: " in str(error)
    assert not is_final(error)


# -- texts ------------------------------------------------------------------------------------------------

WORDS = [
    "x\nCaused by: java.lang.OutOfMemoryError: y\n\tat a.B.c(B.java:1)",
    "[OPERATION_CANCELED] INVALID_HANDLE.SESSION_NOT_FOUND StatusCode.UNAVAILABLE",
    "order 17 has been cancelled",
    "java.lang.OutOfMemoryError: Java heap space",
    "No space left on device",
    "ExecutorLostFailure (executor 3 exited)",
]


@pytest.mark.parametrize("words", rest_in_chaos(1, WORDS))
def test_what_a_function_says_is_not_taken_for_spark(broker, spark, fn, words):
    """The function failed, on that record, whatever its message says."""
    source = numbered(broker)

    def parse(value):
        if value == b"bad":
            raise ValueError(words)
        return value

    error = error_of(
        broker, spark, lambda df: df.select(fn.udf(parse, "binary")("value").alias("value")), source
    )
    assert type(error) is ProcessFailed
    assert f"process failed at {source}-0, offset {BAD}, nothing was written: ValueError" in str(error)


def test_a_record_that_the_function_quotes_is_shown_and_not_obeyed(broker, spark, fn, caplog):
    """The task's log has all of Spark's message."""
    caplog.set_level(logging.INFO, "airflow_eos")
    source = numbered(broker, b"\x1b[2J\xe2\x80\xaeover\rwritten")

    def parse(value):
        if not value.isdigit():
            raise ValueError(value.decode())
        return value

    error = error_of(
        broker, spark, lambda df: df.select(fn.udf(parse, "binary")("value").alias("value")), source
    )
    shown = "\\x1b[2J\\u202eover"
    logged = next(text for text in caplog.messages if "What Spark says" in text)
    assert shown in str(error)
    assert shown in logged
    assert [line for text in caplog.messages for line in text.split("\n") if not printable_line(line)] == []


@pytest.mark.parametrize("words", rest_in_chaos(1, [WORDS[1], WORDS[0], *WORDS[2:]]))
def test_what_a_record_says_is_not_taken_for_spark(broker, spark, fn, words):
    """A log line that mentions memory is cast to a number."""
    source = numbered(broker, words.encode())
    error = error_of(
        broker,
        spark,
        lambda df: df.select(fn.col("value").cast("string").cast("int").cast("string").alias("value")),
        source,
    )
    assert type(error) is ProcessFailed
    assert "CAST_INVALID_INPUT" in str(error)
    assert f"at {source}-0, offset {BAD}," in str(error)


# -- Spark fails, whatever it computes ---------------------------------------------------------------------


@pytest.mark.parametrize("letters", [False, True], ids=["no letters", "dead letters"])
def test_a_session_that_computes_nothing_blames_no_function_and_no_record(broker, spark, letters):
    """No row reaches a Python worker there: all that is read fails, each record alone too."""
    source, sink = numbered(broker), broker.topic("out")
    topic = broker.topic("letters") if letters else None
    spark.conf.set("spark.sql.execution.pandas.udf.buffer.size", "1")
    try:
        with pytest.raises(RunFailed, match=r"Spark fails without process, too, .*4 bytes") as caught:
            read_process_write(spark, spec_of(broker, source, sink, dead_letter_topic=topic), copied)
    finally:
        spark.conf.unset("spark.sql.execution.pandas.udf.buffer.size")
    assert source not in str(caught.value)
    assert not is_final(caught.value)


def copied(df):
    return df.select("key", "value")


def test_a_worker_that_dies_is_not_a_function_that_raised(broker, spark, fn):
    """Spark reports a lost worker: a retry may help."""

    def leave(_value):
        os._exit(3)

    error = error_of(
        broker, spark, lambda df: df.select(fn.udf(leave, "binary")("value").alias("value")), numbered(broker)
    )
    assert type(error) is RunFailed
    assert "Python worker exited unexpectedly" in str(error)


def test_a_worker_that_spark_kills_as_idle_is_not_a_function_that_raised(broker, spark, fn):
    """No record is blamed: it would be a dead letter."""
    if spark_version(spark) < (4, 1):
        pytest.skip("Spark 4.0 kills no idle worker")
    idle = {"idleTimeoutSeconds": "1", "killOnIdleTimeout": "true"}

    def wait(value):
        time.sleep(5)
        return value

    def process(df):
        for name, value in idle.items():
            spark.conf.set(f"spark.sql.execution.pyspark.udf.{name}", value)
        return df.select(fn.udf(wait, "binary")("value").alias("value"))

    error = error_of(broker, spark, process, numbered(broker))
    for name in idle:
        spark.conf.unset(f"spark.sql.execution.pyspark.udf.{name}")
    assert type(error) is RunFailed


# -- dead letters -----------------------------------------------------------------------------------------


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Panic(BaseException):
    """The kind of exception that libraries written in Rust raise."""


def half_an_emoji():
    raise ValueError("half an emoji: \ud83d")


def unreadable():
    raise Unreadable


def leaves():
    sys.exit("bye")


def panics():
    raise Panic("index out of bounds")


def generator_exit():
    raise GeneratorExit


def stops():
    next(iter(()))


def too_deep():
    too_deep()


def huge():
    raise ValueError("x" * 5_000_000)


def cannot_be_pickled():
    raise ValueError(sys.stdout, lambda: None)


RAISES = {
    f.__name__.encode(): f
    for f in (
        half_an_emoji,
        unreadable,
        leaves,
        panics,
        generator_exit,
        stops,
        too_deep,
        huge,
        cannot_be_pickled,
    )
}


@arrow_process
def raising(batch):
    for value in batch["value"].to_pylist():
        if value in RAISES:
            RAISES[value]()
    return batch.select(["key", "value"])


def test_every_record_on_which_the_function_raises_becomes_a_dead_letter(broker, spark):
    """Whatever the function raises; all other records are processed."""
    source, sink, dead = broker.topic("src"), broker.topic("out"), broker.topic("dead")
    given = [value for name in RAISES for value in (b"good", name)]
    broker.produce(source, ({"value": value} for value in given))
    record = read_process_write(spark, spec_of(broker, source, sink, dead_letter_topic=dead), raising)
    assert values(broker, sink) == [b"good"] * len(RAISES)
    letters = read_topic(broker.bootstrap, dead)
    assert [letter.value for letter in letters] == list(RAISES)
    assert record.records_written == len(given)
    for offset, letter in enumerate(letters):
        headers = dict(letter.headers)
        assert headers["source.offset"] == b"%d" % (2 * offset + 1)
        assert 0 < len(headers["error"]) < 2000


@pytest.mark.parametrize(
    "name", rest_in_chaos(2, [b"unreadable", b"panics", b"half_an_emoji", b"leaves", b"generator_exit"])
)
def test_without_dead_letters_the_record_is_named(broker, spark, name):
    """Also if the exception has no text, or is not an Exception."""
    source = numbered(broker, name)
    error = error_of(broker, spark, raising, source)
    assert type(error) is ProcessFailed
    assert f"process failed at {source}-0, offset {BAD}, nothing was written" in str(error)


@arrow_process
def fails_on_bad(batch):
    if any(value is not None and value[:3] == b"bad" for value in batch["value"].to_pylist()):
        raise ValueError("bad record " + "x" * 500)
    return batch.select(["key", "value"])


def test_a_dead_letter_of_a_frame_function_is_cut_and_counted_as_any(broker, spark, fn):
    """On every kind of session: its topic accepts at most 2,000 bytes."""
    source, sink = numbered(broker, b"bad" + os.urandom(6000)), broker.topic("out")
    dead = broker.topic("dead", **{"max.message.bytes": "2000"})

    def refuses(value):
        if value.startswith(b"bad"):
            raise ValueError("bad record")
        return value

    record = read_process_write(
        spark,
        spec_of(broker, source, sink, dead_letter_topic=dead),
        lambda df: df.select(fn.udf(refuses, "binary")("value").alias("value")),
    )
    assert values(broker, sink) == [b"%d" % i for i in range(10) if i != BAD]
    (letter,) = read_topic(broker.bootstrap, dead)
    headers = dict(letter.headers)
    assert letter.value.startswith(b"bad")
    assert headers["source.cut"] == b"value of 6003 bytes"
    assert (headers["error"][:22], headers["source.offset"]) == (b"ValueError: bad record", b"%d" % BAD)
    assert (record.records_read, record.records_written, record.dead_letters) == (10, 10, 1)


def test_a_dead_letter_that_its_topic_would_refuse_is_cut(broker, spark):
    """Because of our headers, its own, its value, or a timestamp that the topic refuses."""
    source = broker.topic("src", **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    sink, dead = broker.topic("out"), broker.topic("dead", **{"max.message.bytes": "2000"})
    noise = os.urandom(6000)
    given = [
        {"value": b"bad" + noise[:1500]},
        {"value": b"bad" + noise[:100], "headers": {"h": noise[:3000]}},
        {"key": noise[:3000], "value": b"bad" + noise},
        {"value": b"bad", "timestamp": NOW + DAY},
        {"value": b"good"},
    ]
    broker.produce(source, given)
    read_process_write(spark, spec_of(broker, source, sink, dead_letter_topic=dead), fails_on_bad)
    assert values(broker, sink) == [b"good"]
    letters = read_topic(broker.bootstrap, dead)
    headers = [dict(letter.headers) for letter in letters]
    assert [fields["source.offset"] for fields in headers] == [b"0", b"1", b"2", b"3"]
    assert all(fields["error"].startswith(b"ValueError: bad record x") for fields in headers)
    by_headers, by_own, by_itself, by_time = letters
    assert by_headers.value == given[0]["value"]
    assert "source.cut" not in headers[0]
    assert by_own.value == given[1]["value"]
    assert headers[1]["source.cut"] == b"headers"
    assert given[2]["value"].startswith(by_itself.value)
    assert headers[2]["source.cut"] == b"value of 6003 bytes, key of 3000 bytes"
    assert by_time.value == b"bad"
    assert headers[3]["source.timestamp"] == b"%d" % (NOW + DAY)
    assert by_time.timestamp < NOW + HOUR


def test_a_dead_letter_without_a_key_gets_one_where_its_topic_is_compacted(broker, spark):
    """Brokers refuse a record without a key there; a record that has one keeps it."""
    source = broker.topic("src")
    sink, dead = broker.topic("out"), broker.topic("dead", **{"cleanup.policy": "compact"})
    broker.produce(source, [{"value": b"bad"}, {"key": b"k", "value": b"bad"}, {"value": b"good"}])
    read_process_write(spark, spec_of(broker, source, sink, dead_letter_topic=dead), fails_on_bad)
    assert values(broker, sink) == [b"good"]
    keyless, keyed = read_topic(broker.bootstrap, dead)
    assert (keyless.key, dict(keyless.headers)["source.key"]) == (f"{source}-0-0".encode(), b"null")
    assert keyed.key == b"k"
    assert "source.key" not in dict(keyed.headers)


def test_above_max_dead_letters_the_first_error_and_its_place_are_said_once(broker, spark):
    """Counted over all tasks: no single task has too many."""
    source, dead = broker.topic("src", 3), broker.topic("dead")
    broker.produce(source, ({"value": b"bad", "partition": p} for p in range(3)))
    error = error_of(broker, spark, fails_on_bad, source, dead_letter_topic=dead, max_dead_letters=1)
    assert type(error) is ProcessFailed
    message = str(error)
    assert "max_dead_letters is 1" in message
    assert f"The first: {source}-0, offset 0: ValueError: bad record" in message
    assert message.count("nothing was written") == message.count("orrect the function") == 1
    assert values(broker, dead) == []


# -- what the sink refuses --------------------------------------------------------------------------------


def passed_on(df):
    return df.select("key", "value", "timestamp")


@arrow_process
def passed_on_by_arrow(batch):
    return batch.select(["key", "value", "timestamp"])


BOTH = pytest.mark.parametrize("process", [passed_on, passed_on_by_arrow], ids=["frame", "arrow"])


def check_refused(error, source, caplog, sends):
    assert isinstance(error, RecordRefused)
    assert is_final(error)
    assert sum("aborting its transaction" in record.getMessage() for record in caplog.records) == sends
    if not sends:
        assert f"The record was read at {source}-0, offset {BAD}" in str(error)
        assert f'skip_offsets=[["{source}", 0, {BAD}, {BAD + 1}]]' in str(error)


@BOTH
@pytest.mark.parametrize("policy", rest_in_chaos(1, ["compact", "compact,delete"]))
def test_a_record_without_a_key_for_a_compacted_sink_is_refused_before_it_is_sent(
    broker, spark, process, policy, caplog
):
    """The error names setting and record: a retry would have the same result."""
    source, sink = broker.topic("src"), broker.topic("out", **{"cleanup.policy": policy})
    broker.produce(source, ({"key": None if i == BAD else b"k", "value": b"v"} for i in range(10)))
    error = error_of(broker, spark, process, source, sink)
    assert "cleanup.policy" in str(error)
    check_refused(error, source, caplog, sends=0)


@BOTH
@pytest.mark.parametrize(
    ("limits", "off"),
    [({}, DAY), ({"message.timestamp.before.max.ms": str(HOUR)}, -DAY)],
    ids=["after", "before"],
)
def test_a_timestamp_far_beyond_the_sinks_limits_is_refused_before_it_is_sent(
    broker, spark, process, limits, off, caplog
):
    """By the topic's limits, also the default ones."""
    source = broker.topic("src", **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
    sink = broker.topic("out", **limits)
    broker.produce(
        source, ({"key": b"k", "value": b"v", "timestamp": NOW + off * (i == BAD)} for i in range(10))
    )
    error = error_of(broker, spark, process, source, sink)
    assert str(NOW + off) in str(error)
    check_refused(error, source, caplog, sends=0)


@BOTH
def test_what_only_the_broker_can_tell_is_sent_once(broker, spark, process, caplog):
    """Just beyond the limit, the broker's clock decides. The error names the record's key and timestamp."""
    source = broker.topic("src", **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    broker.produce(
        source,
        ({"key": b"k%d" % i, "value": b"v", "timestamp": NOW + 2 * HOUR * (i == BAD)} for i in range(10)),
    )
    with caplog.at_level(logging.WARNING):
        error = error_of(broker, spark, process, source)
    assert f"record {BAD} with key b'k{BAD}' and timestamp {NOW + 2 * HOUR} ms" in str(error)
    check_refused(error, source, caplog, sends=1)


@BOTH
def test_a_record_that_is_too_large_for_the_sink_is_named(broker, spark, process, caplog):
    """Compressed, since the topic counts compressed bytes."""
    source, sink = numbered(broker, os.urandom(5000)), broker.topic("out", **{"max.message.bytes": "2000"})
    error = error_of(broker, spark, process, source, sink)
    assert type(error) is RecordTooLarge
    check_refused(error, source, caplog, sends=0)


def test_a_record_that_only_the_topics_codec_makes_too_large_names_that_setting(broker, spark):
    """The broker recompresses it; a run with the same codec detects that before, and names the record."""
    source, sink = broker.topic("src"), broker.topic("out", **{"compression.type": "gzip"})
    broker.produce(source, [{"value": os.urandom(70_000)}])

    def repeated(df):
        return df.selectExpr("unhex(repeat(hex(value), 16)) as value")

    error = error_of(broker, spark, repeated, source, sink)
    assert type(error) is RecordTooLarge
    assert "where the topic's compression.type is another codec" in str(error)
    error = error_of(broker, spark, repeated, source, sink, compression="gzip")
    assert type(error) is RecordTooLarge
    assert f"{source}-0, offset 0" in str(error)


def test_a_record_without_a_timestamp_is_taken_whatever_the_limits(broker, spark, fn):
    """Counter-test: -1 means that a record has no timestamp."""
    sink = broker.topic("out", **{"message.timestamp.before.max.ms": str(HOUR)})
    spec = spec_of(broker, numbered(broker), sink)
    read_process_write(
        spark, spec, lambda df: df.select("value", fn.timestamp_millis(fn.lit(-1)).alias("timestamp"))
    )
    assert [record.timestamp for record in read_topic(broker.bootstrap, sink)] == [-1] * 10


def test_a_sink_that_sets_its_own_time_takes_any_timestamp(broker, spark):
    """Counter-test: LogAppendTime."""
    source = broker.topic("src", **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    sink = broker.topic("out", **{"message.timestamp.type": "LogAppendTime"})
    broker.produce(source, [{"key": b"k", "value": b"v", "timestamp": NOW + DAY}])
    read_process_write(spark, spec_of(broker, source, sink), passed_on)
    assert values(broker, sink) == [b"v"]


# -- timestamps that few types can hold -------------------------------------------------------------------

FAR = [253_402_300_800_000, (2**63 - 1) // 1000]
"""The year 10000, too late for Python's datetime, and the last millisecond of Spark's type."""
NO_LIMIT = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}


def timed(broker, *timestamps):
    """A topic with a record of each time, one by one: else a later one may overtake one that is refused."""
    source = broker.topic("src", **NO_LIMIT)
    for timestamp in timestamps:
        broker.produce(source, [{"value": b"v", "partition": 0, "timestamp": timestamp}])
    return source


@BOTH
def test_a_time_that_only_kafka_and_spark_hold_is_passed_on(broker, spark, process):
    """Unchanged, although Python's datetime cannot represent it."""
    sink = broker.topic("out", **NO_LIMIT)
    read_process_write(spark, spec_of(broker, timed(broker, NOW, *FAR), sink), process)
    assert [record.timestamp for record in read_topic(broker.bootstrap, sink)] == [NOW, *FAR]


@arrow_process
def as_texts(batch):
    texts = [str(moment) for moment in batch["timestamp"].to_pylist()]
    return batch.select(["timestamp"]).append_column("value", pa.array(texts))


@pytest.mark.parametrize("far", FAR, ids=["year 10000", "last of Spark"])
@pytest.mark.parametrize("way", ["frame", "arrow"])
def test_a_time_that_a_function_cannot_hold_is_named_by_its_place(broker, spark, fn, way, far):
    """A Python function gets datetimes: the error names the record whose time has none."""
    text = fn.udf(lambda moment: f"{moment}", "string")
    process = as_texts if way == "arrow" else lambda df: df.select(text("timestamp").alias("value"))
    source = timed(broker, NOW, far)
    error = error_of(broker, spark, process, source)
    assert isinstance(error, ProcessFailed)
    assert f"at {source}-0, offset 1" in str(error)
    assert "OverflowError" in str(error)


# -- what process asks of Airflow -------------------------------------------------------------------------


def raising_airflows(name, place):
    from airflow.sdk import exceptions  # noqa: TID251 - names of the present Airflow

    def process(df, kind):
        if place == "driver":
            raise kind("said the author")
        from pyspark.sql import functions

        def udf(_value):
            raise kind("said the author")

        return df.select(functions.udf(udf, "binary")("value").alias("value"))

    @arrow_process
    def by_arrow(batch, kind):
        raise kind("said the author")

    return functools.partial(by_arrow if place == "arrow" else process, kind=getattr(exceptions, name))


@pytest.mark.parametrize(
    ("name", "place"),
    rest_in_chaos(
        3,
        [
            ("AirflowSkipException", "driver"),
            ("AirflowFailException", "arrow"),
            ("AirflowSkipException", "udf"),
            ("AirflowFailException", "driver"),
            ("AirflowSkipException", "arrow"),
            ("AirflowFailException", "udf"),
        ],
    ),
)
def test_what_process_asks_of_airflow_reaches_it_and_nothing_is_committed(broker, spark, name, place):
    """Also from an executor, which reports only the class, and if bad records are dead letters."""
    source, sink, dead = numbered(broker), broker.topic("out"), broker.topic("dead")
    spec = spec_of(broker, source, sink, dead_letter_topic=dead)
    with pytest.raises(ProcessFailed) as caught:
        read_process_write(spark, spec, raising_airflows(name, place))
    signal = asked_of_airflow(caught.value)
    assert type(signal).__name__ == name
    assert "said the author" in str(signal)
    assert values(broker, sink) == values(broker, dead) == []
    again = replace(spec, dead_letter_topic=None)
    record = read_process_write(spark, again, lambda df: df.select("value"))
    assert record.records_read == 10


@pytest.mark.parametrize("name", ["TaskDeferred", "AirflowTaskTerminated"])
def test_what_ends_a_task_from_outside_passes_and_nothing_is_committed(broker, spark, name):
    """It is not an Exception: our code does not treat it as a failure."""
    from airflow.sdk import exceptions  # noqa: TID251 - names of the present Airflow

    source, sink = numbered(broker), broker.topic("out")
    spec = spec_of(broker, source, sink)
    kind = getattr(exceptions, name)

    def process(_df):
        raise kind(trigger=None, method_name="resume") if name == "TaskDeferred" else kind("SIGTERM")

    with pytest.raises(kind):
        read_process_write(spark, spec, process)
    assert values(broker, sink) == []
    assert read_process_write(spark, spec, lambda df: df.select("value")).records_read == 10


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
def test_a_function_that_ends_its_program_has_failed(broker, spark, kind):
    """On the driver as in a task: an application that ends with code 0 would look like a success."""

    def process(_df):
        raise kind(0)

    error = error_of(broker, spark, process, numbered(broker))
    assert isinstance(error, ProcessFailed)
    assert f"nothing was written: {kind.__name__}: 0 ({__file__}, line" in str(error)


# -- other mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collect", "kind"),
    [(lambda df: df.toPandas(), "pandas.*DataFrame"), (lambda df: df.toArrow(), "pyarrow.*Table")],
    ids=["pandas", "pyarrow"],
)
def test_local_data_that_is_returned_is_called_by_its_full_name(broker, spark, collect, kind):
    """Two libraries have a DataFrame; the error says how to convert it."""
    with pytest.raises(
        ProcessFailed, match=rf"process returned a {kind}; it must return a Spark.*@arrow_process"
    ):
        read_process_write(spark, spec_of(broker, numbered(broker), broker.topic("out")), collect)


def test_a_search_that_is_cut_does_not_read_like_a_finding(broker, spark, fn, monkeypatch):
    """The function takes longer than the search is allowed to."""
    monkeypatch.setattr("airflow_eos.spark.failure_search.SEARCH_SECONDS", 4.0)
    source = numbered(broker)

    def slow(value):
        time.sleep(1.0)
        if value == b"bad":
            raise ValueError("bad")
        return value

    process = lambda df: df.select(fn.udf(slow, "binary")("value").alias("value"))  # noqa: E731
    error = error_of(broker, spark, process, source)
    assert "process failed somewhere in " in str(error)
    assert "given up after 4 s" in str(error)
