"""The sink contract of a process function's result: Spark's Kafka sink plus ``timestamp``.

==========  ===========================================  ==================================================
column      type                                         when missing or null
==========  ===========================================  ==================================================
value       string or binary                             required; null is a tombstone
key         string or binary                             no key: spread over the partitions
topic       string                                       the sink topic; an error when there is none
partition   int (or another integer)                     chosen by the key as Java's producer does
headers     array<struct<key:string,value:binary>>       none
timestamp   timestamp                                    the time of sealing
==========  ===========================================  ==================================================

A timestamp is an instant. A local time (``timestamp_ntz``) is refused, except in sessions with
``spark.sql.timestampType=TIMESTAMP_NTZ``, where it is in the session's time zone. Other columns are ignored,
as in Spark's sink. With a sink topic, a ``topic`` column that names a source topic means the sink topic:
otherwise ``process = lambda df: df`` would write into its own source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ProcessFailed
from airflow_eos.spark.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

_HEADER = "struct<key:string,value:binary>"
_HEADERS = f"array<{_HEADER}>"


def check_frame(df: Any, spark: SparkSession) -> None:
    """Check that a result is a batch DataFrame; with Spark Connect, of this session, that cancels its jobs.

    :raises ProcessFailed: names what to return.
    """
    if not hasattr(type(df), "mapInArrow"):  # a Column has every attribute
        raise ProcessFailed(_no_frame(df))
    if df.isStreaming:
        raise ProcessFailed(
            "process returned a streaming DataFrame; return a batch one, made from its argument"
        )
    if is_connect(spark) and df.sparkSession is not spark:
        raise ProcessFailed(
            "process returned a DataFrame of another Spark Connect session; make it in that of its argument, "
            "df.sparkSession"
        )


def sink_columns(df: Any, sink_topic: str | None, source_topics: Sequence[str]) -> DataFrame:
    """Check the columns on the driver, before anything is written; return them in the sealer's types.

    :raises ProcessFailed: names column, type and next step.
    """
    names = _checked(df, sink_topic)
    return df.select(*(_converted(name, sink_topic, source_topics) for name in _KINDS if name in names))


def table_frame(df: Any, check: Callable[[Any], None]) -> DataFrame:
    """Return a DataFrame of rows for a table, after a check of its columns.

    :param check: gets the Arrow schema of the rows.
    :raises ProcessFailed: as :func:`sink_columns`, or raised by ``check``.
    """
    import inspect

    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.2 requires the time zone that older versions add by themselves; any one will do.
    arguments = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    check(pa.schema([_arrow_field(column, arguments) for column in df.schema]))
    return df


def _arrow_field(column: StructField, arguments: Mapping[str, str]) -> pa.Field:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        return to_arrow_schema(StructType([column]), **arguments).field(0)
    except Exception as error:
        raise ProcessFailed(
            f"process returned column {column.name!r} as {column.dataType.simpleString()}, for which Arrow "
            f"has no type ({error}); cast it"
        ) from error


def addressed(df: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """Return a DataFrame whose columns ``mapInArrow`` can resolve by name, and the original names.

    A name with a dot would be resolved as a struct field, and names that differ only in case are ambiguous.

    :returns: no names if the columns have kept theirs.
    """
    names = df.columns
    is_plain = len({name.lower() for name in names}) == len(names)
    if is_plain and not any("." in name or "`" in name for name in names):
        return df, ()
    return df.toDF(*map(str, range(len(names)))), tuple(names)


def _no_frame(result: Any) -> str:
    if result is None:
        return "process returned NoneType; it must return a Spark DataFrame: is its return statement missing?"
    kind = type(result)
    returned = f"process returned a {kind.__module__}.{kind.__qualname__}; it must return a Spark DataFrame"
    if callable(result) and not isinstance(result, type):
        return f"{returned}: return what the function returns, not the function"
    local = hasattr(result, "__arrow_c_stream__") or hasattr(result, "__dataframe__")
    if local or kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return (
            f"{returned}. Leave out the call that collected it (toPandas, toArrow); for functions of local "
            "data use df.mapInPandas or df.mapInArrow, or declare process with @arrow_process, which gets "
            "and returns such data"
        )
    return returned


def _checked(df: DataFrame, sink_topic: str | None) -> set[str]:
    from pyspark.sql import types as T  # noqa: N812

    case_sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive", "false").lower() == "true"
    names: set[str] = set()
    for column in df.schema.fields:
        name = column.name if case_sensitive else column.name.lower()
        if name not in _KINDS:
            continue
        if name in names:
            raise ProcessFailed(f"process returned two columns named {name!r}; drop one")
        names.add(name)
        is_known = _KINDS[name](T, column.dataType)
        if not is_known and not (name == "timestamp" and _is_local_time(df, column.dataType)):
            raise ProcessFailed(
                f"process returned column {name!r} as {column.dataType.simpleString()}; {_WANTED[name]}, "
                "or drop the column"
            )
    check_names(names, df.columns, sink_topic)
    return names


def check_names(names: Collection[str], returned: Iterable[str], sink_topic: str | None) -> None:
    """Check that no column of a sink is missing.

    :param names: the sink's columns among those that were returned.
    :raises ProcessFailed: names column and next step.
    """
    if "value" not in names:
        raise ProcessFailed(
            f"process returned no column 'value', but {sorted(returned)}; the sink needs it: string or binary"
        )
    if "topic" not in names and sink_topic is None:
        raise ProcessFailed(
            "process returned no column 'topic' and there is no sink topic; set sink_topic, or add the column"
        )


def _converted(name: str, sink_topic: str | None, source_topics: Sequence[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(name)
    if name == "topic" and sink_topic is not None:
        others = [t for t in source_topics if t != sink_topic]
        column = column.cast(ROW_TYPES[name])  # without a collation: topic names are case-sensitive
        unrouted = column.isNull() | column.isin(others) if others else column.isNull()
        return F.when(unrouted, F.lit(sink_topic)).otherwise(column).alias(name)
    if name == "timestamp":
        from pyspark.sql.types import TimestampType

        # Milliseconds, so that the instant does not depend on the session time zone.
        return F.unix_millis(column.cast(TimestampType())).alias(name)
    column = column.cast(ROW_TYPES[name])
    if name == "headers":
        # Spark measures a batch after each row, for which Arrow's Java code walks over all null lists again.
        empty = F.slice(F.array(F.lit(None).cast(_HEADER)), 1, 0)
        column = F.coalesce(column, empty)
    return column.alias(name)


def _is_local_time(df: DataFrame, kind: Any) -> bool:
    """Return whether a column is a local time in a session whose timestamps are local times."""
    from pyspark.sql.types import TimestampNTZType

    meaning = df.sparkSession.conf.get("spark.sql.timestampType", "TIMESTAMP_LTZ")
    return isinstance(kind, TimestampNTZType) and str(meaning).upper() == "TIMESTAMP_NTZ"


def _is_headers(types: Any, kind: Any) -> bool:
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = {f.name: f.dataType for f in kind.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], types.StringType)
        and isinstance(fields["value"], types.BinaryType)
    )


_KINDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "value": lambda types, kind: isinstance(kind, (types.StringType, types.BinaryType)),
    "key": lambda types, kind: isinstance(kind, (types.StringType, types.BinaryType)),
    "topic": lambda types, kind: isinstance(kind, types.StringType),
    "partition": lambda types, kind: isinstance(kind, (types.ByteType, types.ShortType, types.IntegerType)),
    "headers": _is_headers,
    "timestamp": lambda types, kind: isinstance(kind, types.TimestampType),
}
ROW_TYPES = {
    "value": "binary",
    "key": "binary",
    "topic": "string",
    "partition": "int",
    "headers": _HEADERS,
    "timestamp": "bigint",
}
"""Types of the columns of rows to seal, as :func:`sink_columns` returns them."""
_WANTED = {
    "value": "make it string or binary, for example by .cast",
    "key": "make it string or binary, for example by .cast",
    "topic": "make it string, for example by .cast",
    "partition": "make it int, for example by .cast",
    "headers": f"make it {_HEADERS}",
    "timestamp": "make it an instant (TimestampType); .cast('timestamp_ltz') takes a local time "
    "as one of the session's time zone",
}
