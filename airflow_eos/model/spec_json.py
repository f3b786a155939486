"""The JSON form of a run's specification, for runs in another process."""

from __future__ import annotations

import datetime as dt
import json
import sys
from dataclasses import asdict, fields
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval, RangeMode
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import LedgerSettings, RunSpec

SPEC_VERSION = 1
_TABLES: dict[str, type[SinkTable]] = {
    table.KIND: table for table in (IcebergTable, DeltaTable, PostgresTable)
}
_CONVERTED = (
    *("kafka", "source_topics", "ranges", "transaction_timeout", "delivery_timeout", "ledger"),
    *("skip_offsets", "audit", "task", "sink"),
)
_PLAIN = tuple(
    field.name for field in fields(RunSpec) if field.init and field.name not in (*_CONVERTED, "round")
)
"""Fields that JSON represents unchanged; the engine of the other process sets the round."""


def spec_to_json(spec: RunSpec) -> str:
    """Return the versioned JSON form. It contains the client settings with their secrets: keep it private.

    An importable ``oauth_cb`` is replaced by its dotted name.

    :raises ConfigurationError: a client setting is not a JSON value; names it.
    """
    kafka = {name: _by_name(value) if name == "oauth_cb" else value for name, value in spec.kafka.items()}
    for name, value in kafka.items():
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise ConfigurationError(
                f"the client setting {name!r} is a {type(value).__name__}: it cannot be sent to another "
                "process. Use settings in text form (a function by its dotted name, which the other "
                "process can import), or run in the task's process"
            )
    data = {
        "v": SPEC_VERSION,
        "kafka": kafka,
        "source_topics": list(spec.source_topics),
        "ranges": _ranges_to_dict(spec.ranges),
        "transaction_timeout": spec.transaction_timeout.total_seconds(),
        "delivery_timeout": spec.delivery_timeout.total_seconds(),
        "ledger": asdict(spec.ledger),
        "skip_offsets": [offsets.to_list() for offsets in spec.skip_offsets],
        "audit": dict(spec.audit),
        "task": dict(spec.task),
        **{name: getattr(spec, name) for name in _PLAIN},
        # Left out without a table, so that versions without tables can read it.
        **({} if spec.sink is None else {"sink": {"kind": spec.sink.KIND, **asdict(spec.sink)}}),
    }
    return json.dumps(data, separators=(",", ":"))


def _by_name(value: Any) -> Any:
    """Return the dotted name of an importable function; any other value unchanged."""
    name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"
    module, _, function = name.rpartition(".")
    if not callable(value) or module in ("__main__", "builtins"):
        return value
    importable = getattr(sys.modules.get(module), function, None)
    return name if importable is value else value


def spec_from_json(text: str | bytes) -> RunSpec:
    """Read the JSON form; raises ConfigurationError if another version of this package wrote it."""
    data: dict[str, Any] = json.loads(text)
    if data.get("v") != SPEC_VERSION:
        raise ConfigurationError(
            f"specification version {data.get('v')!r} is not readable by this airflow-eos (reads "
            f"{SPEC_VERSION}): install the same version on both sides"
        )
    return RunSpec(
        kafka=data["kafka"],
        source_topics=tuple(data["source_topics"]),
        ranges=_ranges_from_dict(data["ranges"]),
        transaction_timeout=dt.timedelta(seconds=data["transaction_timeout"]),
        delivery_timeout=dt.timedelta(seconds=data["delivery_timeout"]),
        ledger=LedgerSettings(**data["ledger"]),
        audit=data["audit"],
        task=data.get("task", {}),
        skip_offsets=tuple(map(OffsetRange.from_list, data["skip_offsets"])),
        sink=_table(**data["sink"]) if "sink" in data else None,
        **{name: data[name] for name in _PLAIN},
    )


def _table(kind: str, **fields: Any) -> SinkTable:
    if kind not in _TABLES:
        raise ConfigurationError(
            f"a table of kind {kind!r} is not readable by this airflow-eos: install the same version on both "
            "sides"
        )
    return _TABLES[kind](**fields)


def _ranges_to_dict(mode: RangeMode) -> dict[str, Any]:
    match mode:
        case Cursor():
            return {"mode": "cursor", **asdict(mode)}
        case Interval():
            return {
                "mode": "interval",
                "start": mode.start.isoformat(),
                "end": mode.end.isoformat(),
                "allowed_lateness": mode.allowed_lateness.total_seconds(),
                "accept_deleted": mode.accept_deleted,
            }
        case PartitionInterval():
            return {"mode": "partition", "key": mode.key, "interval": _ranges_to_dict(mode.interval)}
        case Explicit():
            ranges = [offsets.to_list() for offsets in mode.ranges]
            return {"mode": "explicit", "ranges": ranges, "advance": mode.advance}


def _ranges_from_dict(data: dict[str, Any]) -> RangeMode:
    match data["mode"]:
        case "cursor":
            return Cursor(**{name: value for name, value in data.items() if name != "mode"})
        case "interval":
            return _interval(data)
        case "partition":
            return PartitionInterval(data["key"], _interval(data["interval"]))
        case "explicit":
            return Explicit(tuple(map(OffsetRange.from_list, data["ranges"])), data["advance"])
        case mode:
            raise ConfigurationError(
                f"range mode {mode!r} is not readable by this airflow-eos: install the same version on both "
                "sides"
            )


def _interval(data: dict[str, Any]) -> Interval:
    return Interval(
        dt.datetime.fromisoformat(data["start"]),
        dt.datetime.fromisoformat(data["end"]),
        dt.timedelta(seconds=data["allowed_lateness"]),
        data.get("accept_deleted", False),
    )
