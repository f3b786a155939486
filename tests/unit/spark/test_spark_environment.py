"""Code is shipped to executors, and what cannot be shipped is compared before the run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from airflow_eos.exceptions import ConfigurationError, EnvironmentMismatch
from airflow_eos.operators.retriable import is_final
from airflow_eos.spark import preflight, probe
from airflow_eos.spark.by_value import _module_of, module_by_value, pickled_by_value
from airflow_eos.spark.code_shipping import _DRIVERS, _OURS, _archive, _our_files, our_modules
from airflow_eos.spark.preflight import differences
from airflow_eos.spark.session import check_version

MINE = {
    "python": "3.11",
    "airflow_eos": "abc",
    "pyarrow": "26.0.1",
    "numpy": "2.4.6",
    "kafka": "3.0.12",
    "google_crc32c": "1.9.0",
    "lz4": "4.4.5",
}


def report(host="h1", **changes):
    return {**MINE, "executor": f"{host}/123", **changes}


def test_equal_versions_are_no_difference():
    """Also on many hosts."""
    assert differences(MINE, [report(), report("h2")]) == {}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("python", "3.12"),
        ("numpy", "1.26.4"),
        ("pyarrow", "17.0.0"),
        ("google_crc32c", "missing"),
        ("airflow_eos", "x"),
    ],
)
def test_a_difference_names_host_module_and_both_versions(name, version):
    """One message lists everything there is to install."""
    mismatches = differences(MINE, [report(), report("h2", **{name: version})])
    assert mismatches == {"h2": {f"{name} is {version} (driver: {MINE[name]})"}}


def test_minor_versions_of_compiled_modules_may_differ():
    """They exchange Arrow data and NumPy arrays, not pickles of them."""
    assert differences(MINE, [report(pyarrow="26.9.0", numpy="2.0.0")]) == {}


def test_lz4_is_only_needed_by_its_codec():
    """Its absence alone is not a difference."""
    assert differences(MINE, [report(lz4="missing")]) == {}


def test_a_sink_compressed_with_lz4_is_refused_before_the_run_where_an_executor_lacks_it(monkeypatch):
    """The error names the package; other codecs work there."""
    versions = probe.versions(our_modules())
    reports = [{**versions, "executor": "h1/1"}, {**versions, "executor": "h2/7", "lz4": probe.MISSING}]
    monkeypatch.setattr(preflight, "check_version", lambda _: None)
    monkeypatch.setattr(preflight, "_ask", lambda _: reports)
    monkeypatch.setattr(preflight, "is_connect", lambda _: False)
    monkeypatch.setattr(preflight, "has_drivers_modules", lambda _: False)
    session = mock.Mock(version="4.1.0")
    assert preflight.check_environment(session, "zstd").versions["lz4"] == probe.MISSING
    with pytest.raises(EnvironmentMismatch, match=r"'lz4' needs the package lz4 .* missing on h2"):
        preflight.check_environment(session, "lz4")


def test_a_daemon_that_has_imported_this_package_is_to_be_upgraded(monkeypatch):
    """Shipped code comes too late there; the usual advice, to install other packages, would not help."""
    versions = probe.versions(our_modules())
    monkeypatch.setattr(preflight, "check_version", lambda _: None)
    monkeypatch.setattr(
        preflight, "_ask", lambda _: [{**versions, "executor": "h1/1", "airflow_eos": "older"}]
    )
    monkeypatch.setattr(preflight, "_local_reports", lambda *_: None)
    monkeypatch.setattr(preflight, "local_python", lambda _: None)
    monkeypatch.setattr(preflight, "ship_code", lambda _: None)
    with pytest.raises(EnvironmentMismatch, match=r"airflow_eos is older .*spark\.python\.daemon\.module"):
        preflight.check_environment(mock.Mock(version="4.2.0"))


class LocalSession:
    """A session in this process whose tasks run on ``python``."""

    version = "4.2.0"
    conf = mock.Mock(get=lambda *_: "local[2]")

    def __init__(self, python):
        self.sparkContext = mock.Mock(pythonExec=python)

    def range(self, _):
        raise RuntimeError("No module named 'pyarrow'")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (
            "/bin/sh",
            rf"runs on {re.escape(sys.executable)}, .* /bin/sh .*PYSPARK_PYTHON={re.escape(sys.executable)}",
        ),
        ("sh", rf"runs on {re.escape(sys.executable)}, .* /\S*bin/sh for tasks"),
        (sys.executable, r"Install the driver's Python minor version"),
    ],
)
def test_a_local_session_with_another_python_names_both_and_the_remedy(python, message, monkeypatch):
    """A virtual environment that is not on PATH: Spark starts the first python3 it finds for tasks."""
    monkeypatch.setattr(preflight, "has_drivers_modules", lambda _: False)
    with pytest.raises(EnvironmentMismatch, match=rf"No module named 'pyarrow'.*\. .*{message}"):
        preflight.check_environment(LocalSession(python))


def test_a_local_session_with_the_drivers_modules_needs_no_job(monkeypatch):
    """The job's result is known in advance; it has as many slots as the job would have partitions."""
    monkeypatch.setattr(preflight, "has_drivers_modules", lambda _: True)
    monkeypatch.setattr(preflight, "is_connect", lambda _: False)
    session = mock.Mock(version="4.2.0", sparkContext=mock.Mock(defaultParallelism=3))
    session.conf.get = lambda name, other="": {"spark.master": "local[3]"}.get(name, other)
    environment = preflight.check_environment(session)
    assert (environment.slots, len(environment.executors), environment.local, environment.shipped) == (
        3,
        1,
        True,
        False,
    )
    assert environment.versions == probe.versions(our_modules())
    session.range.assert_not_called()


def test_all_differing_hosts_are_listed():
    """Not only the first."""
    assert set(differences(MINE, [report("h1", python="3.10"), report("h2", python="3.9")])) == {"h1", "h2"}


@pytest.mark.process
def test_the_shipped_archive_runs_without_the_package_installed(tmp_path):
    """Read, seal and send tasks import from it; it needs neither Airflow nor lz4."""
    archive = _archive("airflow_eos-test", _OURS)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "sys.modules.update(dict.fromkeys(['airflow', 'lz4']));"
        "import airflow_eos.spark.source, airflow_eos.spark.seal_task;"
        "import airflow_eos.spark.send_task, kafka;"
        "assert sys.argv[1] in airflow_eos.spark.send_task.__file__, airflow_eos.spark.send_task.__file__;"
        "assert sys.argv[1] in kafka.__file__, kafka.__file__;"
        "from airflow_eos.spark import probe, code_shipping;"
        "print(probe.code_digest(sys.argv[2].split(',')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive), ",".join(our_modules())],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == probe.code_digest(our_modules())


def imports(tree):
    """Return the names that code imports at run time, also late: all except those for type checkers."""
    unused = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in unused:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import) and node not in unused:
            yield from (alias.name for alias in node.names)


def modules(entries):
    """Return each module's source file by the module's name."""
    return {
        name[: -len(".py")].replace("/", ".").removesuffix(".__init__"): file
        for name, file in _our_files(entries)
    }


@pytest.mark.parametrize("entries", [_OURS, _DRIVERS], ids=["executors", "driver"])
def test_an_archive_has_all_that_its_modules_import(entries):
    """Nothing else of this package is installed where it is unpacked."""
    shipped, all_ours = modules(entries), modules(("",))
    needed = {name for file in shipped.values() for name in imports(ast.parse(file.read_text()))}
    needed &= set(all_ours)  # the rest are other packages' modules, and names of classes and functions
    assert len(needed) > len(shipped) / 2
    assert sorted(needed - set(shipped)) == []


def test_code_that_differs_has_another_digest():
    """Executors with an older package are noticed."""
    assert probe.code_digest(our_modules()[:-1]) != probe.code_digest(our_modules())
    assert probe.code_digest(["no_such_module.py"]) == "lacks no_such_module.py"


def test_a_dag_files_functions_are_pickled_as_code():
    """Executors cannot import a Dag file."""
    from pyspark import cloudpickle

    def process(df):
        return df

    with pickled_by_value(process):
        assert process.__module__ in cloudpickle.list_registry_pickle_by_value()
        with pickled_by_value(process):
            pass
        assert process.__module__ in cloudpickle.list_registry_pickle_by_value()
    assert process.__module__ not in cloudpickle.list_registry_pickle_by_value()


def test_installed_functions_and_built_ins_are_left_alone():
    """Executors have them, or the author ships them."""
    import json

    assert _module_of(json.dumps) is None
    assert _module_of(len) is None
    assert _module_of(pytest.fail) is None


def test_an_authors_own_registration_outlives_ours():
    """A registration by the author stays."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(probe)
    try:
        with module_by_value(probe):
            pass
        assert probe.__name__ in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(probe)


def test_a_spark_that_is_too_old_is_refused_and_not_tried_again():
    """Whichever executors a retry gets, the server is the same."""
    with pytest.raises(ConfigurationError, match=r"the Spark server runs Spark 3\.5\.1") as refused:
        check_version(SimpleNamespace(version="3.5.1"))
    assert is_final(refused.value)
    check_version(SimpleNamespace(version="4.0.0"))
