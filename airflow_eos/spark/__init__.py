"""The data plane on Spark: read offset ranges, seal, materialise, send.

::

    plane = SparkDataPlane(spark, spec, process)
    plane.preflight()
    sealed = plane.seal(plan)              # nothing is written to Kafka yet
    receipts = plane.send(sealed, identity, timeout=240)
    plane.release(sealed)

Classic sessions and Spark Connect alike: nothing here needs a SparkContext. Code reaches executors by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.spark.context import RunContext
    from airflow_eos.spark.data_plane import SparkDataPlane

__all__ = ["RunContext", "SparkDataPlane"]

_HOMES = {"RunContext": "context", "SparkDataPlane": "data_plane"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: executors need only the modules of their task."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
