"""``@arrow_process``: an author's function over Arrow record batches instead of a DataFrame.

Reading, transform and sealing then run in one Python task, and no record enters the JVM::

    @arrow_process
    def shout(batch: pa.RecordBatch) -> pa.RecordBatch:
        value = pc.binary_join_element_wise(batch["value"], b"!", b"")
        return pa.record_batch({"key": batch["key"], "value": value})

The function gets the records of one source partition, some thousand at a time and in offset order, with the
columns of Spark's Kafka source (``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
``timestampType``, ``headers``). It returns rows by the sink contract
(:mod:`airflow_eos.spark.frame_contract`) as anything with Arrow's C data interface: a pyarrow record batch or
table, a polars data frame; or a pandas one; or None for no rows. It is called many times, in several
processes: it must not remember anything that changes its results, since a batch's size is not part of the
contract.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__airflow_eos_arrow__"


def arrow_process(function: Function) -> Function:
    """Declare that a process function takes and returns Arrow record batches; returns the function itself.

    :raises ConfigurationError: it is no function that can carry the declaration.
    """
    try:
        setattr(function, _MARK, True)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"{function!r} cannot be declared as an arrow_process; write a function or lambda around it"
        ) from None
    return function


def is_arrow_process(process: Callable[..., Any]) -> bool:
    """Whether ``process``, or what a partial of it calls, was declared by :func:`arrow_process`."""
    while isinstance(process, functools.partial):
        process = process.func
    return bool(getattr(process, _MARK, False))
