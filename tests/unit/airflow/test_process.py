from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark import cloudpickle

from airflow_eos.engine.application import PROCESS_OPTION, SPEC_OPTION, command_line, failure_mark
from airflow_eos.exceptions import ConfigurationError, ProcessFailed
from airflow_eos.operators.process_function import load_process, ship_by_value
from airflow_eos.operators.retriable import is_final


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Path]:
    """A Dag folder next to an app that imports its neighbour."""
    modules, path, shipped = set(sys.modules), list(sys.path), cloudpickle.list_registry_pickle_by_value()
    (tmp_path / "dags").mkdir()
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "eos_app.py").write_text(
        "from eos_neighbour import shout\n\ndef process(df):\n    return shout(df)\n\nnumber = 3\n"
    )
    (tmp_path / "apps" / "eos_neighbour.py").write_text("def shout(text):\n    return text.upper()\n")
    (tmp_path / "apps" / "eos_broken.py").write_text("import eos_no_such_module\n")
    (tmp_path / "apps" / "eos_script.py").write_text("import sys\n\ndef process(df): ...\n\nsys.exit(0)\n")
    yield tmp_path / "dags"
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("eos_"):
            if name in cloudpickle.list_registry_pickle_by_value() - shipped:
                cloudpickle.unregister_pickle_by_value(sys.modules[name])
            del sys.modules[name]


def test_path_is_relative_to_the_dag_file(app: Path) -> None:
    """The app's file is found from the Dag's folder, and may import its neighbours."""
    process = load_process("../apps/eos_app.py:process", relative_to=app)
    assert process("x") == "X"
    assert load_process("../apps/eos_app.py:process", relative_to=app) is process


def test_dotted_name_is_imported(app: Path) -> None:
    """A function of an installed module is named by module and function."""
    assert load_process("json:dumps", relative_to=app)([1]) == "[1]"


def test_function_is_taken_as_it_is(app: Path) -> None:
    """A callable needs no loading."""
    assert load_process(len, relative_to=app) is len


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("process", "'package.module:function'"),
        ("../apps/eos_absent.py:process", "there is no file"),
        ("../apps/eos_broken.py:process", "eos_no_such_module"),
        ("../apps/eos_script.py:process", "SystemExit: 0"),
        ("../apps/eos_app.py:other", "other"),
        ("../apps/eos_app.py:number", "not a function"),
        ("eos_not_installed:process", "eos_not_installed"),
    ],
)
def test_what_cannot_be_loaded_is_named(app: Path, name: str, says: str) -> None:
    """The error names the string and the cause; half-loaded modules are not kept."""
    with pytest.raises(ConfigurationError, match=says):
        load_process(name, relative_to=app)
    assert "eos_broken" not in sys.modules


@pytest.mark.parametrize("failure", ["TimeoutError('no answer')", "http.client.IncompleteRead(b'')"])
def test_an_import_that_asks_a_service_in_vain_is_repeated_by_the_next_try(app: Path, failure: str) -> None:
    """Libraries need not derive their errors from OSError, and a module may load a model from a store."""
    (app.parent / "apps" / "eos_asks.py").write_text(f"import http.client\n\nraise {failure}\n")
    with pytest.raises(ProcessFailed, match=r"eos_asks.py:process' cannot be loaded") as caught:
        load_process("../apps/eos_asks.py:process", relative_to=app)
    assert not is_final(caught.value)


def test_author_modules_travel_to_executors_as_code(app: Path) -> None:
    """A function and its neighbour can be unpickled where neither file exists."""
    process = load_process("../apps/eos_app.py:process", relative_to=app)
    ship_by_value(partial(process))
    data = cloudpickle.dumps(process)
    for name in ("eos_app", "eos_neighbour"):
        cloudpickle.unregister_pickle_by_value(sys.modules[name])
        del sys.modules[name]
    sys.path.remove(str(app.parent / "apps"))
    importlib.invalidate_caches()
    assert cloudpickle.loads(data)("x") == "X"


def test_installed_modules_are_named_not_shipped() -> None:
    """Executors have installed packages: their code is not shipped."""
    before = cloudpickle.list_registry_pickle_by_value()
    ship_by_value(partial(load_process("json:dumps", relative_to=Path())))
    ship_by_value(len)
    assert cloudpickle.list_registry_pickle_by_value() == before


@pytest.mark.parametrize(
    ("code", "error", "final"),
    [
        ("raise SystemExit(0)", "SystemExit: 0", True),
        ("import eos_absent", "ModuleNotFoundError: No module named 'eos_absent'; py_files takes", True),
        ("raise TimeoutError('no answer')", "TimeoutError: no answer", False),
    ],
)
def test_module_that_the_driver_cannot_load_is_told_to_the_submitting_task(
    app: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: str,
    error: str,
    final: bool,
) -> None:
    """With code 0 the cluster would report success; other codes have no reason."""
    (app.parent / "apps" / "eos_unloadable.py").write_text(code)
    monkeypatch.syspath_prepend(str(app.parent / "apps"))
    arguments = [PROCESS_OPTION, "eos_unloadable:process", SPEC_OPTION, "folder/spec-1.json"]
    monkeypatch.setattr(sys, "argv", ["submit.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 3
    reports = [
        line for line in capfd.readouterr().err.splitlines() if line.startswith(failure_mark("spec-1.json"))
    ]
    assert len(reports) == 1
    assert f"cannot load process 'eos_unloadable:process': {error}" in reports[0]
    assert ("ConfigurationError" in reports[0]) == final
