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
    from collections.abc import Callable

    from airflow_eos.spark.context import RunContext
    from airflow_eos.spark.data_plane import SparkDataPlane

    main: Callable[..., Any]

__all__ = ["RunContext", "SparkDataPlane", "main"]

_HOMES = {
    "RunContext": "airflow_eos.spark.context",
    "SparkDataPlane": "airflow_eos.spark.data_plane",
    # An application's main joins Spark with the protocol: the engine does, a layer above.
    "main": "airflow_eos.engine.submit",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: executors need only the modules of their task."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
