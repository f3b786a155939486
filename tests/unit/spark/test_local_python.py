"""An interpreter is asked whether a local session's tasks find the driver's modules: it is not assumed."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest

from airflow_eos.spark import local_python
from airflow_eos.spark.local_python import ask, has_drivers_modules, is_local

PATH = os.environ.get("PYTHONPATH", "")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Leave the sources' folder, where any Python finds them; forget earlier answers."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(local_python, "_checks", {})


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://local:7077", False),
        ("", False),
    ],
)
def test_one_process_or_several(master, expected):
    """The executors of a local cluster are separate processes."""
    assert is_local(master) is expected


def test_the_same_interpreter_finds_the_same():
    """Both in the driver and in a task."""
    assert ask(sys.executable, PATH).result()


@pytest.mark.parametrize("name", ["airflow_eos", "kafka", "numpy"])
def test_another_version_on_its_path_is_found_out(tmp_path, name):
    """A task would import that version, the driver another."""
    (tmp_path / "other" / name).mkdir(parents=True)
    (tmp_path / "other" / name / "__init__.py").touch()
    assert not ask(sys.executable, f"{tmp_path / 'other'}{os.pathsep}{PATH}").result()


def test_a_module_that_a_task_would_not_find_is_found_out(monkeypatch, tmp_path):
    """It is in a folder that only the driver's own path has."""
    (tmp_path / "mine" / "lz4").mkdir(parents=True)
    (tmp_path / "mine" / "lz4" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    monkeypatch.delitem(sys.modules, "lz4", raising=False)
    assert not ask(sys.executable, PATH).result()


@pytest.mark.parametrize("python", ["/bin/sh", "no-such-python"])
def test_what_does_not_answer_is_another_one(python):
    """The job's error then tells what is wrong with it."""
    assert not ask(python, PATH).result()


def test_it_is_asked_once(monkeypatch):
    """Session and preflight share the answer."""
    first = ask(sys.executable, PATH)
    assert ask(sys.executable, PATH) is first
    assert ask(sys.executable, PATH + os.pathsep) is not first


def session(master="local[2]", *, includes=(), added=False, environment=None, inherited=None):
    context = mock.Mock(
        master=master, listFiles=list(includes), environment=environment or {}, pythonExec="python"
    )
    context._jvm.System.getenv.return_value = inherited
    fake = mock.Mock(sparkContext=context)
    fake._jsparkSession.artifactManager().getPythonIncludes().isEmpty.return_value = not added
    return fake


@pytest.mark.parametrize(
    ("spark", "answer"),
    [
        (session(), True),
        (session("spark://host:7077"), False),
        (session("local-cluster[1,1,1024]"), False),
        (session(includes=["theirs.zip"]), False),
        (session(added=True), False),
    ],
)
def test_files_of_the_session_come_first_in_its_tasks(monkeypatch, spark, answer):
    """A cluster's files are unknown to this machine's Python."""
    monkeypatch.setattr(local_python, "ask", lambda *_: mock.Mock(result=lambda: True))
    assert has_drivers_modules(spark) is answer


def test_both_paths_of_a_worker_are_asked_for(monkeypatch):
    """That of the session's settings, and that of the JVM."""
    ask = mock.Mock()
    monkeypatch.setattr(local_python, "ask", ask)
    has_drivers_modules(session(environment={"PYTHONPATH": "a"}, inherited="b"))
    has_drivers_modules(session())
    assert ask.call_args_list == [mock.call("python", f"a{os.pathsep}b"), mock.call("python", "")]
