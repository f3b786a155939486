"""The JVM of a local session: fast for small runs, with classes from a trustworthy archive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark_host import class_data, jvm
from airflow_eos_testing import class_data as equipment
from airflow_eos_testing.java import find_java
from airflow_eos_testing.spark_jvm import write_archive

_ENOUGH = 5_000
"""Classes; a session with a job loads twice as many."""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the archive."""
    monkeypatch.setattr(jvm, "java", find_java)
    tmp_path.chmod(0o755)
    path = jvm.archive_of(tmp_path, find_java())
    path.write_bytes(b"")
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("offsets", "rows", "quick"),
    [
        (0, True, True),
        (jvm.SMALL_PLAN, True, True),
        (jvm.SMALL_PLAN + 1, True, False),
        (jvm.SMALL_PLAN + 1, False, True),
    ],
)
def test_the_optimising_compiler_is_for_many_rows(
    archive: Path, offsets: int, rows: bool, quick: bool
) -> None:
    """Records of an Arrow process are not rows in the JVM; all runs use the archive."""
    options = jvm.options_for(offsets, archive.parent, rows=rows).split()
    assert ("-XX:TieredStopAtLevel=1" in options) is quick
    assert {*jvm.LATE_OPTIMISER}.isdisjoint(options) is quick
    assert f"-XX:SharedArchiveFile={archive}" in options


@pytest.mark.parametrize(("cores", "offsets", "serial"), [(2, 10**9, True), (3, 10**9, False), (3, 1, True)])
def test_the_serial_collector_is_for_few_cores_or_records(
    archive: Path, monkeypatch: pytest.MonkeyPatch, cores: int, offsets: int, serial: bool
) -> None:
    """With more cores Java chooses itself."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert (jvm.SERIAL_COLLECTOR in jvm.options_for(offsets, archive.parent).split()) is serial


@pytest.mark.parametrize("writable", ["archive", "folder", "nothing", "absent"])
def test_an_archive_that_others_could_write_is_not_used(
    archive: Path, writable: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its contents are executed; without an archive the log says how to create one."""
    caplog.set_level("INFO")
    if writable == "archive":
        archive.chmod(0o664)
    elif writable == "folder":
        archive.parent.chmod(0o777)
    elif writable == "absent":
        archive.unlink()
    used = "SharedArchiveFile" in jvm.options_for(1, archive.parent)
    assert used is (writable == "nothing")
    assert ("airflow eos warm-spark" in caplog.text) is not used


def test_another_java_or_spark_has_an_archive_of_its_own(archive: Path, tmp_path: Path) -> None:
    """One that does not fit would be silently ignored."""
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"a")
    first = class_data.archive_path(tmp_path, "spark", find_java(), [jar])
    jar.write_bytes(b"ab")
    assert class_data.archive_path(tmp_path, "spark", find_java(), [jar]) != first
    assert jvm.archive_of(tmp_path, tmp_path / "other" / "java") != archive


def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark itself would only report a missing file."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Java 17"):
        jvm.java()


_PROCESSES = """
sleep 60 &
echo $! > %s
echo "$SPARK_SUBMIT_OPTS" > %s
wait
"""
"""Replaces a Python process and its JVM: the child outlives its parent."""


def test_a_session_that_takes_too_long_is_ended_with_its_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that outlived it would write its archive where another user may have made a folder by then."""
    child, options, folder = tmp_path / "child", tmp_path / "options", tmp_path / "class data"
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(jvm, "_JOBS", _PROCESSES % (child, options))
    monkeypatch.setattr(jvm, "_TIMEOUT", 0.5)
    with pytest.raises(ConfigurationError, match=r"within 0\.5 s"):
        jvm.write_archive(folder, find_java())
    assert not Path(f"/proc/{int(child.read_text())}/exe").exists()
    assert f"'-XX:ArchiveClassesAtExit={folder}/" in options.read_text()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("state", ["a file", "below a file", "writable by others"])
def test_a_folder_that_can_hold_no_archive_is_named(tmp_path: Path, state: str) -> None:
    """Before a session starts; a task starts without class data."""
    folder = tmp_path / "class-data"
    if state == "writable by others":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.touch()
    folder = folder / "below" if state == "below a file" else folder
    with pytest.raises(ConfigurationError, match=str(folder)):
        jvm.write_archive(folder, find_java())
    assert not class_data.is_trusted(jvm.archive_of(folder, find_java()))


_SESSION = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config({name!r}, {options!r})
builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
spark.range(3).collect()
log = spark._jvm.org.apache.logging.log4j.LogManager
log.getLogger("org.apache.spark.util.Utils").warn("Service 'x' could not bind")
failure = spark._jvm.java.lang.RuntimeException("line\\n of a message")
log.getLogger("org.apache.spark.executor.Executor").error("Exception in task 0.0", failure)
log.getLogger("org.apache.spark.scheduler.TaskSetManager").warn("Lost task 0.0: x\\n\\tat org.apache.spark")
log.getLogger("org.apache.spark.SparkContext").error("another", failure)
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], list[str]]:
    """The classes that one of our sessions loads, and its output on standard output and standard error."""
    write_archive()
    home = tmp_path_factory.mktemp("a home with spaces")
    seen = tmp_path_factory.mktemp("jvm") / "classes"
    for archive in equipment.folder().glob("spark-*.jsa"):
        (home / archive.name).symlink_to(archive)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jvm, "java", find_java)
        options = jvm.options_for(1, home)
    environment = {name: value for name, value in os.environ.items() if name != jvm.OPTIONS_VARIABLE}
    environment |= {"JAVA_TOOL_OPTIONS": f"-Xlog:class+load:file={seen}"}
    environment.pop("SPARK_LOCAL_IP", None)
    done = subprocess.run(
        [sys.executable, "-c", _SESSION.format(name=jvm.OPTIONS, options=options)],
        env=environment,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    return seen.read_text().splitlines(), done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.jvm
def test_a_session_takes_its_classes_from_the_archive(
    session: tuple[list[str], list[str], list[str]],
) -> None:
    """The JVM itself confirms it: a wrong option would be silently ignored."""
    lines, _, _ = session
    assert sum("shared objects file (top)" in line for line in lines) > _ENOUGH


@pytest.mark.jvm
def test_only_errors_of_a_session_go_to_standard_error(
    session: tuple[list[str], list[str], list[str]],
) -> None:
    """A task log marks everything there as an error; two lines are the JVM's, before any setting."""
    _, out, err = session
    jvms = ("Picked up JAVA_TOOL_OPTIONS", "WARNING: Using incubator modules")
    error, *other = [line for line in err if not line.startswith(jvms)]
    assert error.endswith("ERROR Executor: Exception in task 0.0")
    warned, lost = out
    assert warned.endswith("WARN Utils: Service 'x' could not bind")
    # A run's own report of a failed task is one line here, everything else is complete.
    assert lost.endswith("WARN TaskSetManager: Lost task 0.0: x")
    assert other[0].endswith("ERROR SparkContext: another")
    assert any(line.startswith("\tat ") for line in other)


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [("log4j2.properties", False), ("log4j2.xml", False), ("log4j2.properties.template", True)],
)
def test_a_log_configuration_of_somebodys_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_ours: bool
) -> None:
    """Ours would replace it, so it is omitted."""
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / name).write_text("")
    assert bool(jvm.log_options()) is is_ours
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "nothing"))
    assert jvm.log_options()
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "file:///any")
    assert not jvm.log_options()
