"""The sink contract: which columns a process function may return. It equals Spark's Kafka sink, plus ``timestamp``.

==========  ===========================================  ==================================================
column      type                                         when missing or null
==========  ===========================================  ==================================================
value       string or binary                             required; null is a tombstone
key         string or binary                             no key: records are spread
topic       string                                       the sink topic; an error when there is none
partition   int (or another integer)                     chosen by the key as Java's producer does
headers     array<struct<key:string,value:binary>>       none
timestamp   timestamp                                    the time of sealing
==========  ===========================================  ==================================================

Other columns are ignored, as Spark does. With a sink topic, a ``topic`` column that still names a topic which was read
means the sink topic: otherwise ``process = lambda df: df`` would write into its own source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_HEADERS = "array<struct<key:string,value:binary>>"


def sink_columns(df: Any, sink_topic: str | None, source_topics: Sequence[str]) -> DataFrame:
    """Check the columns, on the driver and before anything is written, and return them in the sealer's types.

    :raises ProcessFailed: naming column, type and what to do.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if not hasattr(df, "mapInArrow"):
        raise ProcessFailed(f"process returned {type(df).__name__}; it must return a DataFrame")
    if df.isStreaming:
        raise ProcessFailed(
            "process returned a streaming DataFrame; return a batch one, made from its argument"
        )
    found: dict[str, Any] = {}
    for field in df.schema.fields:
        if field.name in found and field.name in _KINDS:
            raise ProcessFailed(f"process returned two columns named {field.name!r}; drop one")
        found[field.name] = field.dataType
    if "value" not in found:
        raise ProcessFailed(
            f"process returned no column 'value', but {sorted(found)}; the sink needs it: string or binary"
        )
    if "topic" not in found and sink_topic is None:
        raise ProcessFailed(
            "process returned no column 'topic' and there is no sink topic; set sink_topic, or add the column"
        )
    for name, kind in found.items():
        if name in _KINDS and not _KINDS[name](T, kind):
            raise ProcessFailed(
                f"process returned column {name!r} as {kind.simpleString()}; {_WANTED[name]}, "
                f"for example by .cast, or drop the column"
            )
    columns = [F.col("value").cast("binary").alias("value")]
    if "key" in found:
        columns.append(F.col("key").cast("binary").alias("key"))
    if "topic" in found:
        topic = F.col("topic")
        if sink_topic is not None:
            others = [t for t in source_topics if t != sink_topic]
            unrouted = topic.isNull() | topic.isin(others) if others else topic.isNull()
            topic = F.when(unrouted, F.lit(sink_topic)).otherwise(topic)
        columns.append(topic.alias("topic"))
    if "partition" in found:
        columns.append(F.col("partition").cast("int").alias("partition"))
    if "headers" in found:
        columns.append(F.col("headers").cast(_HEADERS).alias("headers"))
    if "timestamp" in found:
        # Milliseconds, so that no session time zone is asked.
        columns.append(F.unix_millis(F.col("timestamp")).alias("timestamp"))
    return df.select(*columns)


def _is_text(types: Any, kind: Any) -> bool:
    return isinstance(kind, (types.StringType, types.BinaryType))


def _is_headers(types: Any, kind: Any) -> bool:
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = {f.name: f.dataType for f in kind.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], types.StringType)
        and isinstance(fields["value"], types.BinaryType)
    )


_KINDS = {
    "value": _is_text,
    "key": _is_text,
    "topic": lambda types, kind: isinstance(kind, types.StringType),
    "partition": lambda types, kind: isinstance(kind, (types.ByteType, types.ShortType, types.IntegerType)),
    "headers": _is_headers,
    "timestamp": lambda types, kind: isinstance(kind, types.TimestampType),
}
_WANTED = {
    "value": "make it string or binary",
    "key": "make it string or binary",
    "topic": "make it string",
    "partition": "make it int",
    "headers": f"make it {_HEADERS}",
    "timestamp": "make it timestamp (with the session's time zone, not timestamp_ntz)",
}
