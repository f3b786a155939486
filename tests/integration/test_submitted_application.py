"""The application that spark-submit starts: each start is a new attempt, whatever starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_eos.engine import application, find_committed
from airflow_eos.exceptions import RunFailed
from airflow_eos.model.spec_json import spec_to_json
from airflow_eos.run.states import State
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import LocalDataPlane, Paused, Pipeline


class FakeSpark:
    """A session that is stopped; the data plane of these tests needs none."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def pipeline(embedded_kafka: Any) -> Pipeline:
    pipeline = Pipeline(embedded_kafka)
    pipeline.publish([f"a{n}" for n in range(5)])
    return pipeline


@pytest.fixture
def start(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Start the application with the run's specification, as a cluster manager does, once or again."""
    spark = FakeSpark()
    monkeypatch.setattr(application, "_session", lambda: spark)
    monkeypatch.setattr("airflow_eos.engine.run.LazyDataPlane", lambda _spark, spec, *_: LocalDataPlane(spec))
    monkeypatch.setattr("pyspark.SparkFiles.get", lambda name: str(tmp_path / name))
    file = tmp_path / "spec.json"
    file.write_text(spec_to_json(pipeline.spec))

    def started() -> Any:
        return application.main(lambda df: df, [application.SPEC_OPTION, file.name])

    yield started
    assert spark.stops > 0


def test_second_application_master_finds_the_commit_of_the_first(pipeline: Pipeline, start: Any) -> None:
    """YARN starts another one after the first has committed: it writes nothing and succeeds."""
    first, second = start(), start()
    assert (first.found, second.found) == (False, True)
    assert second.summary() == {**first.summary(), "found": True}
    assert len(pipeline.output()) == 5


def test_supervised_restart_fences_a_driver_that_was_given_up(pipeline: Pipeline, start: Any) -> None:
    """The first driver is still alive, with an open transaction: it is fenced and finds the commit."""
    lost = Paused(pipeline, State.OPEN)
    record = start()
    assert record.found is False
    lost.resume()
    assert lost.record is not None
    assert lost.record.found
    assert len(pipeline.output()) == 5


def test_application_that_cannot_commit_says_so_in_one_line_and_ends_with_3(
    pipeline: Pipeline, start: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitting task reads the error's class from it."""

    def fails(_self: LocalDataPlane, _plan: Any) -> Any:
        raise RunFailed("the transform failed\nat line 3")

    monkeypatch.setattr(LocalDataPlane, "seal", fails)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 3
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("airflow-eos failed")]
    error = "RunFailed: the transform failed at line 3 (docs/errors.md#runfailed)"
    assert lines == [f"{application.failure_mark('spec.json')} {error}"]
    assert pipeline.output("read_uncommitted") == []


OTHERS = (State.ABORTED, State.UNKNOWN, State.INTENT, State.PUBLISHED)  # states after failures, and of tables
STOPS = {"ASKED", "WRITTEN", "COMMITTED"}
OTHER_STOPS = [state.value for state in State if state not in OTHERS and state.value not in STOPS]
TOLD_TO_STOP = """
import os, signal, sys
from types import SimpleNamespace
from airflow_eos.engine import application
from airflow_eos.run.states import State
from tests.support.local_runs import LocalDataPlane

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a parent may have left it
where, file = sys.argv[1:]

def stop_at(place):
    if place == where:
        os.kill(os.getpid(), signal.SIGTERM)

def session():
    stop_at("session")
    return SimpleNamespace(stop=lambda: None)

class Run(application.RunAttempt):
    def __init__(self, _spark, spec, process):
        super().__init__(_spark, spec, process, on_state=lambda state: stop_at(state.value))
        self._data = LocalDataPlane(spec)
        self._data.cancel = lambda *_: None

application._session, application.RunAttempt = session, Run
import pyspark
pyspark.SparkFiles.get = staticmethod(lambda name: name)
application.main(lambda df: df, [application.SPEC_OPTION, file])
"""


@pytest.mark.parametrize("stop", rest_in_chaos(4, ["session", "ASKED", "WRITTEN", "COMMITTED", *OTHER_STOPS]))
def test_application_told_to_stop_ends_and_commits_nothing_more(
    pipeline: Pipeline, tmp_path: Path, stop: str
) -> None:
    """SIGTERM at any moment, also during the start of Spark."""
    file, script = tmp_path / "spec.json", tmp_path / "told.py"
    file.write_text(spec_to_json(pipeline.spec))
    script.write_text(TOLD_TO_STOP)
    done = subprocess.run(
        [sys.executable, str(script), stop, str(file)], check=False, timeout=60, stderr=subprocess.PIPE
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr.decode()
    committed = stop == "COMMITTED"
    assert len(pipeline.output()) == (5 if committed else 0)
    if stop not in ("session", "ASKED"):
        assert (find_committed(pipeline.spec) is not None) is committed


def test_threads_that_keep_the_driver_are_named(
    pipeline: Pipeline, start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python waits for the threads, and the task for the driver, although the run is committed."""
    seal, may_end = LocalDataPlane.seal, threading.Event()
    threads = [
        threading.Thread(target=may_end.wait, name=f"of-the-function-{n}", daemon=n > 1) for n in (1, 2)
    ]

    def starts_and_seals(self: LocalDataPlane, plan: Any) -> Any:
        for thread in threads:
            thread.start()
        return seal(self, plan)

    monkeypatch.setattr(LocalDataPlane, "seal", starts_and_seals)
    try:
        start()
    finally:
        may_end.set()
    assert "the driver ends once these threads have: of-the-function-1" in caplog.text.splitlines()[-1]
    assert "of-the-function-2" not in caplog.text
    start()
    assert caplog.text.count("once these threads have") == 1


def test_process_that_the_function_forks_leaves_the_run_alone(
    pipeline: Pipeline, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child gets SIGTERM, like a pool's worker, during the transaction, and has the driver's handler."""
    send, ended = LocalDataPlane.send, []

    def forks_and_sends(self: LocalDataPlane, sealed: Any, identity: Any, timeout: float) -> Any:
        receipts = send(self, sealed, identity, timeout)
        forked, forks = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(forks, b"here")
            time.sleep(30)
            os._exit(0)
        os.read(forked, 4)
        os.close(forked)
        os.close(forks)
        forked_process = psutil.Process(child)
        forked_process.terminate()
        try:
            ended.append(forked_process.wait(10))
        finally:
            with suppress(psutil.NoSuchProcess):
                forked_process.kill()
        return receipts

    monkeypatch.setattr(LocalDataPlane, "send", forks_and_sends)
    start()
    assert ended == [128 + signal.SIGTERM]
    assert len(pipeline.output()) == 5
