"""The data plane on Spark: read offset ranges, seal, materialise, send.

::

    plane = SparkDataPlane(spark, spec, process)
    sealed = plane.seal(plan)              # nothing is written to Kafka yet
    receipts = plane.send(sealed, identity, timeout=240)
    plane.release(sealed)

Works on classic sessions and on Spark Connect: nothing here needs a SparkContext.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.spark.data_plane import SparkDataPlane
    from airflow_eos.spark.process import RunContext

    main: Callable[..., Any]

__all__ = ["RunContext", "SparkDataPlane", "main"]

# Executors need only the modules of their task. An application's main joins Spark and the protocol, so it is
# in the engine, a layer above.
__getattr__ = lazy_exports(
    __name__,
    {
        ".process": ("RunContext",),
        ".data_plane": ("SparkDataPlane",),
        "airflow_eos.engine.application": ("main",),
    },
)
