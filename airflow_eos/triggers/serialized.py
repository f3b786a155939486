"""Base of triggers whose attributes have the names of their constructor's parameters."""

from __future__ import annotations

import inspect
from typing import Any

from airflow.triggers.base import BaseTrigger


class SerializedTrigger(BaseTrigger):
    """A trigger that is a dataclass of its parameters."""

    def __post_init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, in the order of the parameters; they identify the trigger."""
        kind = type(self)
        names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in names}
