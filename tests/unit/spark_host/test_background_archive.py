"""Class data (CDS) that a task has written for later tasks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_eos.spark_host import background_archive, class_data, jvm
from airflow_eos.spark_host.background_archive import AGAIN_AFTER, write_in_background
from airflow_eos_testing.java import find_java
from tests.support.patience import wait_until

_LIMIT = 180
"""Seconds."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for archives, which does not exist yet."""
    monkeypatch.setattr(jvm, "java", find_java)
    return tmp_path / "class-data"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders for which a process would have been started."""
    folders: list[Path] = []

    def start(folder: Path, _java: Path, _output: object) -> object:
        folders.append(folder)
        return object()

    monkeypatch.setattr(background_archive, "_start", start)
    return folders


def log_of(folder: Path) -> Path:
    return jvm.archive_of(folder, find_java()).with_suffix(".log")


def test_of_tasks_without_class_data_one_has_them_written(folder: Path, started: list[Path]) -> None:
    """Later tasks find its output file."""
    assert [bool(write_in_background(folder)) for _ in range(3)] == [True, False, False]
    assert len(started) == 1


def test_after_a_day_without_an_archive_another_process_is_started(folder: Path, started: list[Path]) -> None:
    """The first one was killed, or failed; its file has the reason until then."""
    write_in_background(folder)
    log_of(folder).write_text("No space left on device")
    os.utime(log_of(folder), (time.time() - AGAIN_AFTER - 60,) * 2)
    write_in_background(folder)
    assert len(started) == 2
    assert "No space" not in log_of(folder).read_text()


def test_tasks_that_end_at_once_start_one_process(folder: Path, started: list[Path]) -> None:
    """The one that holds the lock."""
    folder.mkdir(mode=0o755)
    with log_of(folder).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert write_in_background(folder) is None
    assert started == []


@pytest.mark.parametrize("state", ["written", "writable by others", "read-only"])
def test_nothing_is_started_where_there_is_an_archive_or_cannot_be_one(
    folder: Path, started: list[Path], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive in a folder that others can write would not be used."""
    folder.mkdir(mode=0o755)
    if state == "written":
        jvm.archive_of(folder, find_java()).touch(mode=0o644)
    elif state == "writable by others":
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert write_in_background(folder) is None
    assert started == []


def test_the_process_sees_no_secret_of_airflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs Spark's own classes only, and needs none."""
    for name in ("AIRFLOW_CONN_KAFKA_DEFAULT", "AIRFLOW_VAR_TOKEN", "AIRFLOW__CORE__FERNET_KEY"):
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setattr(background_archive, "_SCRIPT", "import os; print(dict(os.environ))")
    process = write_in_background(folder)
    assert process is not None
    assert process.wait(60) == 0
    printed = log_of(folder).read_text()
    assert "PATH" in printed
    assert "a-secret" not in printed


_TASKS = """
import os, sys
from airflow_eos.operators.spark_session import TaskSession, spark_settings

for written in sys.argv[1:]:
    os.environ["AIRFLOW__EOS__WRITE_CLASS_DATA"] = written
    session = TaskSession(spark_settings(None, "a task", {"spark.master": "local[1]"}))
    spark = session.start(1)
    assert spark.range(3).count() == 3
    options = spark.conf.get("spark.driver.extraJavaOptions")
    session.stop()
    print(os.path.exists(os.environ["AIRFLOW__EOS__CLASS_DATA_FOLDER"]), options)
"""


def run_tasks(folder: Path, *written: str) -> list[str]:
    """Start and stop Spark like tasks, in one process.

    :param written: for each task, the option whether class data are written.
    :return: for each, whether the folder existed at its end, and the options of its JVM.
    """
    environment = {name: value for name, value in os.environ.items() if name != jvm.OPTIONS_VARIABLE}
    environment |= {
        "AIRFLOW__EOS__CLASS_DATA_FOLDER": str(folder),
        "JAVA_HOME": str(find_java().parent.parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", _TASKS, *written],
        env=environment,
        check=True,
        timeout=_LIMIT,
        capture_output=True,
        text=True,
    )
    return [line for line in done.stdout.splitlines() if line.startswith(("True ", "False "))]


@pytest.mark.chaos
@pytest.mark.jvm
def test_the_first_task_has_them_written_and_the_next_one_starts_with_them(folder: Path) -> None:
    """The process outlives the task; an option prevents tasks from starting one."""
    refused, first = run_tasks(folder, "False", "True")
    assert refused.startswith("False ")
    assert first.startswith("True ")
    assert "SharedArchiveFile" not in refused + first
    wait_until(lambda: class_data.is_trusted(jvm.archive_of(folder, find_java())), _LIMIT)
    (following,) = run_tasks(folder, "True")
    assert "SharedArchiveFile" in following
