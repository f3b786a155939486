"""The run protocol; import public names from :mod:`airflow_eos`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import LedgerSettings, RunSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    read_process_write: Callable[..., RunRecord]

__all__ = [
    "Cursor",
    "Explicit",
    "Interval",
    "LedgerSettings",
    "OffsetRange",
    "PartitionInterval",
    "RunRecord",
    "RunSpec",
    "read_process_write",
]

# The protocol speaks to ports; the engine, a layer above, joins it with broker and Spark.
_COMPOSED = {"read_process_write": "airflow_eos.engine"}


def __getattr__(name: str) -> Any:
    if name in _COMPOSED:
        return getattr(importlib.import_module(_COMPOSED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
