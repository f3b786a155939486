"""Pickles the author's module by value while its function runs.

A Dag file is no module that executors could import, so functions in it must travel as code. Installed modules are left
alone: executors have them, or the author ships them.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


@contextmanager
def pickled_by_value(process: Callable[..., Any]) -> Iterator[None]:
    """Let cloudpickle take everything of the function's module by value, in this block."""
    from pyspark import cloudpickle

    module = _module_of(process)
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _module_of(process: Callable[..., Any]) -> ModuleType | None:
    """Return the module, None when executors can be expected to import it or it travels by value anyway."""
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
