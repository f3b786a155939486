"""The engine: the run protocol joined with a real cluster and a real Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.engine.ledger import answer, create_ledger, ledger_status, look_up, partition_counts
    from airflow_eos.engine.run import Run, read_process_write

__all__ = [
    "Run",
    "answer",
    "create_ledger",
    "ledger_status",
    "look_up",
    "partition_counts",
    "read_process_write",
]

_HOMES = {
    "Run": "run",
    "answer": "ledger",
    "create_ledger": "ledger",
    "ledger_status": "ledger",
    "look_up": "ledger",
    "partition_counts": "ledger",
    "read_process_write": "run",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: Kafka clients must not load while a Dag is parsed."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
