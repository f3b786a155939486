"""The JVM of a local session: quick for small runs, and its classes from an archive that can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark import class_data, jvm
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
    ("offsets", "quick"), [(0, True), (jvm.SMALL_PLAN, True), (jvm.SMALL_PLAN + 1, False)]
)
def test_the_optimising_compiler_is_for_large_runs(archive: Path, offsets: int, quick: bool) -> None:
    """Both get the archive."""
    options = jvm.options_for(offsets, archive.parent).split()
    assert ("-XX:TieredStopAtLevel=1" in options) is quick
    assert f"-XX:SharedArchiveFile={archive}" in options


@pytest.mark.parametrize("writable", ["archive", "folder", "nothing", "absent"])
def test_an_archive_that_others_could_write_is_not_used(
    archive: Path, writable: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it holds is run; where there is none the log says how to get one."""
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
    """One that does not fit would be ignored, and nobody would see why."""
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"a")
    first = class_data.archive_path(tmp_path, "spark", find_java(), [jar])
    jar.write_bytes(b"ab")
    assert class_data.archive_path(tmp_path, "spark", find_java(), [jar]) != first
    assert jvm.archive_of(tmp_path, tmp_path / "other" / "java") != archive


def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Spark itself would say that a file is missing."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Java 17"):
        jvm.java()


def test_a_session_takes_its_classes_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the JVM itself: a wrong option would be ignored in silence."""
    write_archive()
    monkeypatch.setattr(jvm, "java", find_java)
    seen = tmp_path / "classes"
    options = jvm.options_for(1, equipment.folder())
    code = (
        "from pyspark.sql import SparkSession\n"
        f"builder = SparkSession.builder.master('local[1]').config({jvm.OPTIONS!r}, {options!r})\n"
        "builder.config('spark.ui.enabled', 'false').getOrCreate().range(3).collect()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != jvm.OPTIONS_VARIABLE}
    environment |= {"JAVA_TOOL_OPTIONS": f"-Xlog:class+load:file={seen}", "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, timeout=120, capture_output=True
    )
    lines = seen.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in lines) > _ENOUGH
