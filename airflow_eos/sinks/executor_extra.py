"""Names the extra of this package that is missing on an executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_eos.exceptions import EnvironmentMismatch


@contextmanager
def executor_extra(table: str, module: str, extra: str) -> Iterator[None]:
    """Turn a failed import in this block into EnvironmentMismatch, which names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise EnvironmentMismatch(
            f"{table} is written by Spark's tasks, and {module} is missing there ({error}): install "
            f"airflow-eos[{extra}] on the executors"
        ) from None
