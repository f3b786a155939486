"""Packages whose public names are imported on first use (PEP 562).

Dag files import this package every few seconds: neither Spark nor a Kafka client may load for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    :param package: its ``__name__``.
    :param homes: names by the module that defines them; a module that starts with a dot is the package's own.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name], package), name)

    return find
