"""The author's process function: its view of the run, and ``@arrow_process``."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.exceptions import ConfigurationError, ProcessFailed
from airflow_eos.model.ranges import Interval, PartitionInterval, interval_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.model.plan import ModeName, RunPlan
    from airflow_eos.model.ranges import OffsetRange
    from airflow_eos.model.spec import RunSpec

    Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run from the author's perspective, without client configuration and producer identity.

    :param ranges: offset ranges that the DataFrame reads.
    :param interval: the data interval, for interval and partition runs.
    :param partition_key: the partition key, for partition runs.
    """

    pipeline: str
    run_id: str
    mode: ModeName
    ranges: tuple[OffsetRange, ...]
    source_topics: tuple[str, ...]
    sink_topic: str | None
    interval: Interval | None = None
    partition_key: str | None = None

    @classmethod
    def of(cls, spec: RunSpec, plan: RunPlan) -> RunContext:
        """Return the context of a planned run."""
        mode = spec.ranges
        return cls(
            pipeline=spec.pipeline,
            run_id=spec.run_id,
            mode=plan.mode,
            ranges=plan.ranges,
            source_topics=spec.source_topics,
            sink_topic=spec.sink_topic,
            interval=interval_of(mode),
            partition_key=mode.key if isinstance(mode, PartitionInterval) else None,
        )


def call_process(process: Callable[..., Any], df: Any, run: RunContext) -> Any:
    """Call ``process(df)`` or ``process(df, run)``.

    A parameter named ``run``, or a second one without a default, gets the context.

    :raises ProcessFailed: the function takes neither one nor two arguments.
    """
    try:
        parameters = list(inspect.signature(process).parameters.values())
    except (TypeError, ValueError):
        return process(df)  # a callable without a signature, such as some built-ins
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    named = next((p for p in parameters if p.name == "run" and p.kind != p.POSITIONAL_ONLY), None)
    if named is not None and positional[:1] != [named]:
        return process(df, run=run)
    if len(needed) > 2 or any(p.kind == p.KEYWORD_ONLY for p in needed):  # noqa: PLR2004
        raise ProcessFailed(
            f"process takes {inspect.signature(process)}; it must be callable as process(df) or "
            "process(df, run)"
        )
    return process(df, run) if len(needed) == 2 else process(df)  # noqa: PLR2004


_MARK = "__airflow_eos_arrow__"


def arrow_process(function: Function) -> Function:
    """Declare that a process function takes and returns Arrow record batches; returns the function itself.

    Reading, transform and sealing then run in one Python task, and no record enters the JVM::

        @arrow_process
        def shout(batch: pa.RecordBatch) -> pa.RecordBatch:
            value = pc.binary_join_element_wise(batch["value"], b"!", b"")
            return pa.record_batch({"key": batch["key"], "value": value})

    The function gets the records of one source partition, some thousand at a time and in offset order, with
    the columns of Spark's Kafka source (``key``, ``value``, ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType``, ``headers``). It returns rows by the sink contract
    (:mod:`airflow_eos.spark.frame_contract`) as anything with Arrow's C data interface: a pyarrow record
    batch or table, a polars data frame; or a pandas one; or None for no rows. It is called many times, in
    several processes: it must not remember anything that changes its results, since a batch's size is not
    part of the contract.

    :raises ConfigurationError: the function does not accept attributes.
    """
    try:
        setattr(function, _MARK, True)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"{function!r} cannot be declared as an arrow_process; write a function or lambda around it"
        ) from None
    return function


def is_arrow_process(process: Callable[..., Any]) -> bool:
    """Whether ``process``, or the function of a partial, was declared by :func:`arrow_process`."""
    while isinstance(process, functools.partial):
        process = process.func
    return bool(getattr(process, _MARK, False))
