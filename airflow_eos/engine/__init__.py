"""The engine: connects the run protocol with a real cluster and a real Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from airflow_eos.engine.committed import answer, find_committed
    from airflow_eos.engine.run import Run, RunAttempt, read_process_write

__all__ = ["Run", "RunAttempt", "answer", "find_committed", "read_process_write"]

# Kafka clients must not load while a Dag is parsed.
__getattr__ = lazy_exports(
    __name__,
    {
        ".run": ("Run", "RunAttempt", "read_process_write"),
        ".committed": ("answer", "find_committed"),
    },
)
