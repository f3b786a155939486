"""Names the extra of this package that a task needs and its executor lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_eos.exceptions import EnvironmentMismatch


@contextmanager
def executor_extra(table: str, module: str, extra: str) -> Iterator[None]:
    """Import a library inside this block; raises EnvironmentMismatch, naming the extra that has it."""
    try:
        yield
    except ImportError as error:
        raise EnvironmentMismatch(
            f"{table} is written by Spark's tasks, and {module} is missing there ({error}): install "
            f"airflow-eos[{extra}] on the executors"
        ) from None
