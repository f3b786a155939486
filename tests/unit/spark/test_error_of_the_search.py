"""A failure names only the records that cause it: a stub of Spark's seal processes parts of the input."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from airflow_eos.exceptions import EosError, ProcessFailed, RecordRefused, RunFailed
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.spec import RunSpec
from airflow_eos.spark.data_plane import SparkDataPlane
from airflow_eos.spark.errors import TaskError

SPEC = RunSpec(
    pipeline="p",
    source_topics=["t"],
    sink_topic="out",
    group_id="g",
    run_id="r",
    kafka={"bootstrap.servers": "b:1"},
)


class Sealing:
    """Raises the last failure of a part first, as a task that checks before it writes."""

    set_aside = dead_letters = None

    def __init__(self, failures):
        self.failures = failures
        self.ranges = [OffsetRange("t", 0, 0, 8)]

    def try_on(self, part, *, writes=True):
        for offset in sorted(self.failures, reverse=True):
            if any(offsets.start <= offset < offsets.end for offsets in part):
                raise self.failures[offset]


def raised(failures_of):
    """Return the error of the data plane for a failing seal."""
    plane = SparkDataPlane(None, SPEC, lambda df: df)
    sealing = Sealing(failures_of(lambda error: TaskError(plane._mark.text(error))))
    with pytest.raises(EosError) as caught, plane._process_errors(sealing):
        sealing.try_on(sealing.ranges)
    return caught.value


def test_the_message_is_of_the_record_that_is_named():
    """Two records cause the same kind of failure."""
    refused = raised(lambda marked: {1: marked(RecordRefused("not UTF-8")), 2: marked(RecordRefused("NUL"))})
    assert type(refused) is RecordRefused
    assert re.search("not UTF-8.* at t-0, offset 1 ", str(refused))
    failed = raised(lambda _: {1: ValueError("no number"), 2: KeyError("flight")})
    assert type(failed) is ProcessFailed
    assert re.search("at t-0, offset 1, .*no number", str(failed))


def test_a_failure_that_a_task_names_is_another_than_one_of_the_function():
    """A search for one does not stop at the other."""
    failed = raised(
        lambda marked: {1: marked(ProcessFailed("returned no value")), 2: ValueError("no number")}
    )
    assert re.search("at t-0, offset 2, .*no number", str(failed))


def test_a_failure_without_records_is_the_first_one(monkeypatch):
    """It names no record, and has the message of the seal."""
    plane = SparkDataPlane(None, SPEC, lambda df: df)
    sealing = Sealing({})
    monkeypatch.setattr(sealing, "try_on", lambda *_, **__: (_ for _ in ()).throw(ValueError("again")))
    first = "process failed, nothing was written: ValueError: first"
    with pytest.raises(ProcessFailed, match=first), plane._process_errors(sealing):
        raise ValueError("first")


def test_a_jvm_that_ended_behind_its_error_is_said_to_have_ended():
    """The error asks the JVM for its text: the refused connection is not the cause."""

    def refused(_):
        raise ConnectionRefusedError

    client = SimpleNamespace(send_command=refused)
    thrown = Py4JJavaError("", SimpleNamespace(_target_id="o1", _gateway_client=client))
    plane = SparkDataPlane(None, SPEC, lambda df: df)
    with pytest.raises(RunFailed, match="the JVM has ended"), plane._process_errors(Sealing({})):
        raise thrown


def test_a_function_that_stops_its_session_is_told_so():
    """The stopped session's message has no cause."""
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    plane = SparkDataPlane(session, SPEC, lambda df: df)
    with pytest.raises(ProcessFailed, match=r"stopped .* take stop\(\)"), plane._process_errors():
        raise AssertionError
