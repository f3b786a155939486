"""PySpark and its client share a folder: an error names what does not match, and the command to fix it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from airflow_eos.exceptions import EnvironmentMismatch
from airflow_eos.operations import executors
from airflow_eos.spark import distributions
from airflow_eos.spark.distributions import (
    LINES_WITHOUT_CLIENT,
    SparkDistributions,
    check_distributions,
    installed_distributions,
    minor_version,
)
from airflow_eos.spark.preflight import check_environment

ROOT = Path(__file__).resolve().parents[3]


def site(folder, *, module="", **versions):
    """Make a folder of packages with ``import pyspark`` and the metadata of distributions."""
    (folder / "pyspark").mkdir(parents=True)
    (folder / "pyspark" / "__init__.py").write_text(module)
    for name, version in versions.items():
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        named = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (metadata / "METADATA").write_text(named)
    return str(folder)


@pytest.mark.parametrize("client", ["4.0.4", "4.2.0", "4.10.0", "5.1.0"])
def test_two_minor_versions_in_one_folder_are_refused_with_the_command_that_mends_it(tmp_path, client):
    """``pip install 'airflow-eos'`` over an older PySpark does this; ``pip check`` reports nothing."""
    path = [site(tmp_path, pyspark="4.1.4", pyspark_client=client)]
    with pytest.raises(EnvironmentMismatch) as caught:
        check_distributions(path)
    assert f"pyspark 4.1.4, pyspark-client {client} share one folder" in str(caught.value)
    command = "pip install --force-reinstall --no-deps 'pyspark==4.1.4' 'pyspark-client==4.1.*'"
    assert f"Run: {command} (" in str(caught.value)


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ({"pyspark": "4.1.4", "pyspark_client": "4.1.3"}, "pyspark 4.1.4, pyspark-client 4.1.3"),
        ({"pyspark_client": "4.2.0"}, "pyspark-client 4.2.0"),
        ({"pyspark": "4.0.0"}, "pyspark 4.0.0"),
        ({}, "none"),
    ],
)
def test_patch_versions_may_differ_and_each_may_be_alone(tmp_path, versions, shown):
    """Spark publishes the client later, so its newest patch version is often older."""
    assert str(check_distributions([site(tmp_path, **versions)])) == shown


@pytest.mark.parametrize(
    ("client", "command"),
    [
        ("4.2.0", "pip uninstall --yes pyspark-client && "),
        ("4.4.0", "pip uninstall --yes pyspark-client && "),
        (None, ""),
    ],
)
def test_a_line_without_a_client_is_repaired_without_one(client, command):
    """No client of Spark 4.3 can be installed; files that pip removes with another one are PySpark's own."""
    command += "pip install --force-reinstall --no-deps 'pyspark==4.3.0'"
    assert SparkDistributions("4.3.0", client).repair == command


def test_a_spark_without_its_client_fits_together_alone_only(tmp_path):
    """``pip install airflow-eos`` over PySpark 4.3 brings the newest client, of 4.2."""
    assert check_distributions([site(tmp_path / "alone", pyspark="4.3.0")]).client is None
    with pytest.raises(EnvironmentMismatch, match="Run: pip uninstall --yes pyspark-client && "):
        check_distributions([site(tmp_path / "both", pyspark="4.3.0", pyspark_client="4.2.0")])


@pytest.mark.parametrize("version", ["3.5.9", "4.9.0", "5.0.0"])
def test_a_spark_that_is_not_supported_is_replaced_by_the_newest_line(version):
    """Repairing it would only lead to the next refusal."""
    assert SparkDistributions(version, "4.2.0").repair == "pip install 'airflow-eos[pyspark42]'"


def test_a_spark_that_comes_first_on_the_path_hides_what_is_installed(tmp_path):
    """``SPARK_HOME/python`` is complete: no installed PySpark is loaded."""
    mixed = site(tmp_path / "site-packages", pyspark="4.1.4", pyspark_client="4.2.0")
    shipped = site(tmp_path / "spark-home")
    assert not installed_distributions([mixed]).agree
    assert installed_distributions([shipped, mixed]) == SparkDistributions(None, None)


ENTRIES = {
    "a session": "from airflow_eos.spark.distributions import import_session_class; import_session_class()",
    "a process of a file": (
        "from pathlib import Path; from airflow_eos.operators.process_function import load_process; "
        "load_process('process.py:process', relative_to=Path())"
    ),
    "a process of the Dag file": (
        "from airflow_eos.operators.process_function import ship_by_value; ship_by_value(lambda df: df)"
    ),
    "a class-data archive": (
        "from pathlib import Path; from airflow_eos.spark_host.jvm import write_archive; "
        "write_archive(Path('archives'), Path('java'))"
    ),
}
"""The first thing that a task or a command does with PySpark."""


@pytest.mark.process
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("versions", "module", "shown"),
    [
        ({"pyspark": "4.1.4", "pyspark_client": "4.2.0"}, "raise ImportError('mixed')", "share one folder"),
        ({"pyspark": "4.2.0"}, "", "removing one removes files of the other"),
    ],
    ids=["mixed", "half removed"],
)
def test_whatever_needs_pyspark_first_names_the_command_instead_of_an_import_error(
    tmp_path, versions, module, shown, entry
):
    """A failed import from PySpark does not tell its cause."""
    path = os.pathsep.join([site(tmp_path / "packages", module=module, **versions), str(ROOT)])
    (tmp_path / "process.py").write_text("from pyspark.sql.functions import col\n")
    done = subprocess.run(
        [sys.executable, "-c", ENTRIES[entry]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    error = done.stderr.splitlines()[-1]
    assert error.startswith("airflow_eos.exceptions.EnvironmentMismatch: ")
    assert shown in error
    assert "Run: pip install --force-reinstall --no-deps 'pyspark==" in error


@pytest.mark.parametrize(("client", "problems"), [("4.2.0", 1), ("4.1.3", 0)])
def test_the_doctor_compares_them_too(monkeypatch, client, problems):
    """Without a session: it checks the doctor's own Python."""
    monkeypatch.setattr(executors, "installed_distributions", lambda: SparkDistributions("4.1.4", client))
    checks = executors.distribution_problems()
    rows = [(check.status, check.advice.partition(" --")[0]) for check in checks]
    assert rows == [("fail", "run: pip install")] * problems


def test_the_preflight_compares_them_for_a_session_that_somebody_else_started(monkeypatch):
    """``read_process_write`` gets such a session; the run has not begun."""
    monkeypatch.setattr(
        distributions, "installed_distributions", lambda _: SparkDistributions("4.1.4", "4.2.0")
    )
    with pytest.raises(EnvironmentMismatch, match="share one folder"):
        check_environment(mock.Mock(version="4.1.4"))


def test_this_environment_fits_together():
    """The PySpark that the tests use, wherever it is imported from."""
    installed = check_distributions()
    assert installed.pyspark is not None
    alone = map(minor_version, LINES_WITHOUT_CLIENT)
    assert (installed.client is None) == (minor_version(installed.pyspark) in alone)
