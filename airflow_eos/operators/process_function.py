"""Loads the author's ``process`` function, and ships it to the executors."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_eos.exceptions import ConfigurationError, ProcessFailed, is_mistake
from airflow_eos.operators.process_signature import parts_of
from airflow_eos.spark.distributions import import_session_class

Process = Callable[..., Any]


def load_process(process: Process | str, *, relative_to: Path) -> Process:
    """Return the function.

    :param process: a function, ``"package.module:function"``, or ``"path/to/file.py:function"``, relative to
        the folder of the Dag file; the file may import its neighbours. A string keeps the imports of the
        function's module out of the Dag file.
    :param relative_to: folder of the Dag file.
    :raises ConfigurationError: it cannot be found or imported; names the string and the cause.
    :raises ProcessFailed: its import failed with an error that may be transient.
    :raises EnvironmentMismatch: it imports PySpark, which is installed in two versions here.
    """
    if not isinstance(process, str):
        return process
    place, name = parts_of(process)
    try:
        module = _load_file(relative_to / place) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError):
            import_session_class()  # raises if PySpark itself is the cause
        # A module may call a service when it is imported.
        kind = ConfigurationError if is_mistake(error) else ProcessFailed
        raise kind(f"process {process!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"process {process!r} is a {type(function).__name__}, not a function")
    return function


def ship_by_value(process: Process) -> None:
    """Let Spark pickle the author's modules by value, with the functions that use them.

    Spark's pickler sends a function of an importable module by name. Executors have neither the Dag folder
    nor Airflow's names of Dag modules: user-defined functions would fail there with ``ModuleNotFoundError``.
    Installed packages are still sent by name.

    :raises EnvironmentMismatch: PySpark is installed in two versions here.
    """
    import_session_class()
    from pyspark import cloudpickle

    while isinstance(process, functools.partial):
        process = process.func
    module = sys.modules.get(getattr(process, "__module__", None) or "")
    folder = _own_folder(module)
    if folder is None:
        return
    for candidate in list(sys.modules.values()):
        other = _own_folder(candidate)
        if other is not None and other.is_relative_to(folder) and candidate.__name__ in sys.modules:
            cloudpickle.register_pickle_by_value(candidate)


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"eos_{hash(path):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(sysconfig.get_path(name)).resolve() for name in names}
    return (*folders, Path(__file__).resolve().parent.parent)


def _own_folder(module: Any) -> Path | None:
    """Return the folder of a module that is neither installed nor part of this package."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    path = Path(file).resolve()
    return None if any(path.is_relative_to(folder) for folder in _installed()) else path.parent
