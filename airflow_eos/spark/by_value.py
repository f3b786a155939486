"""Pickles by value the modules that executors cannot import, such as a Dag file.

Installed modules are pickled by name: executors have them, or the author ships them.
"""

from __future__ import annotations

import functools
import pickle
import sys
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_eos.spark.session import changed, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = 512 << 10
"""Bytes from which a pickled function travels in a broadcast variable, not inside the tasks."""


def pickled_by_value(process: Callable[..., Any]) -> AbstractContextManager[None]:
    """Let cloudpickle pickle the function's module by value, in this block."""
    module = _module_of(process)
    return nullcontext() if module is None else module_by_value(module)


def module_by_value(module: ModuleType) -> AbstractContextManager[None]:
    """Let cloudpickle pickle a module's functions and classes by value, in this block."""
    from pyspark import cloudpickle

    def register() -> Callable[[], object]:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            return lambda: None  # the author's own registration must outlive ours
        cloudpickle.register_pickle_by_value(module)
        return functools.partial(cloudpickle.unregister_pickle_by_value, module)

    return changed(module.__name__, register)


class _Apart:
    """A function in its own broadcast variable; unpickled in a task, it is the function itself.

    PySpark writes the pickled function of a task to files on driver and executors if it is larger than a
    megabyte. Without the author's function, the functions of this package are small, and the credentials in
    them stay in memory.
    """

    def __init__(self, spark: SparkSession, pickled: bytes) -> None:
        self._variable = spark.sparkContext.broadcast(pickled)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._variable,)


def _loaded(variable: Any) -> Any:
    return pickle.loads(variable.value)  # noqa: S301 - the author's function


def apart_if_large(spark: SparkSession, process: Callable[..., Any]) -> Any:
    """Return the author's function in a form that classic tasks may contain together with credentials."""
    if is_connect(spark):
        return process  # its client sends functions inline, and writes no files
    from pyspark.serializers import CloudPickleSerializer

    pickled = CloudPickleSerializer().dumps(process)
    return process if len(pickled) < LARGE else _Apart(spark, pickled)


def _module_of(process: Callable[..., Any]) -> ModuleType | None:
    """Return the module; None if executors can import it, or it is pickled by value anyway."""
    while isinstance(process, functools.partial):
        process = process.func
    name = getattr(process, "__module__", None) or type(process).__module__
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "builtins") or name.split(".")[0] == "airflow_eos":
        return None
    file = getattr(module, "__file__", None)
    if not file:
        return None
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    if any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in installed if folder):
        return None
    return module
