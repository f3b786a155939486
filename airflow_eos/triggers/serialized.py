"""The serialized form of a trigger whose attributes have the names of its constructor's parameters."""

from __future__ import annotations

import inspect
from typing import Any

from airflow.triggers.base import BaseTrigger


def serialized(trigger: BaseTrigger) -> tuple[str, dict[str, Any]]:
    """Return class path and constructor arguments, in the order of the parameters."""
    kind = type(trigger)
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(trigger, name) for name in names}
