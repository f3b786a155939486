"""RunRecord: the ledger's record of a committed run, which is also the result returned to callers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.names import checked_name
from airflow_eos.model.output import PartitionReceipt, total
from airflow_eos.model.plan import ModeName
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.table import TableReceipt
from airflow_eos.model.versioned import Versioned, flag, integer, json_object, text, topic_name

TOPIC_IDS = "topic_ids"
"""The detail that names the ids of the topics read: ``{topic: id}``."""
DEAD_LETTERS = "dead_letters"
"""The detail that counts records on which the process raised; absent where there are none."""
TABLE = "table"
"""The detail about the rows of a table: ``{sink, uuid, snapshot, files, rows}``; absent without rows."""
REPLACED = "replaced"
"""Part of the detail of a table: the snapshots whose rows this run's rows replaced."""
ACCEPTED_LOSS = "accepted_loss"
"""The detail that lists records that were not read, by consent: deleted or skipped; absent without any."""
AIRFLOW = "airflow"
"""The detail about the Airflow task of the run, see :class:`~airflow_eos.model.spec.RunSpec`."""
ROUNDS = "rounds"
"""The detail that counts the rounds of a cursor's run, this one included."""
WORK = "work"
"""The detail that defines the work, see :class:`airflow_eos.run.work.WorkDefinition`."""
_MODES = frozenset(get_args(ModeName))


@dataclass(frozen=True, slots=True)
class RunRecord(Versioned):
    """A committed run, written to the ledger inside the transaction that it describes.

    If the record is readable under read_committed, the run is committed.

    :param run_key: names the unit of work; one committed record per key.
    :param records_read_by_partition: records read per source partition, ``{"topic-partition": n}``; -1 if
        not counted.
    :param receipts: one receipt per target partition, for the records written.
    :param run_id: the Dag run that did the work, with ``clear_number`` and ``try_number``.
    :param producer: producer id and epoch of all writers.
    :param trace: ``[(state, seconds since the run started)]``.
    :param records_late: for an interval, records read with timestamps before its start, because they arrived
        after that boundary was pinned; -1 if not counted.
    :param details: Spark application id, versions, notes, ids of the topics read, requested parameters.
    :param found: True if the ledger already had the record and the caller did not run; not part of the JSON.
    """

    KIND = "run record"
    VERSIONS = (1,)

    run_key: str
    pipeline: str
    mode: ModeName
    run_id: str
    clear_number: int
    try_number: int
    group_id: str
    ranges: tuple[OffsetRange, ...]
    records_read_by_partition: Mapping[str, int]
    receipts: tuple[PartitionReceipt, ...]
    producer: ProducerIdentity
    started_at: str
    staged_at: str
    trace: tuple[tuple[str, float], ...] = ()
    records_late: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    found: bool = field(default=False, compare=False)

    state: ClassVar[str] = "COMMITTED"
    """Only committed runs have a record."""

    @property
    def records_read(self) -> int:
        """Number of records read; -1 if a partition could not be counted."""
        return total(self.records_read_by_partition.values())

    @property
    def dag_id(self) -> str:
        """The Dag whose task did the work; empty if the record does not name one."""
        dag_id = self.of_task("dag_id")
        return dag_id if isinstance(dag_id, str) else ""

    def of_task(self, name: str) -> Any:
        """Return a detail of the task, unchecked, as others may have written it; None: not recorded."""
        task = self.details.get(AIRFLOW)
        return task.get(name) if isinstance(task, Mapping) else None

    @property
    def records_written(self) -> int:
        """Number of records written to all target partitions, or of rows of a table."""
        return sum(r.records for r in self.receipts) + sum(self.table_rows.values())

    @property
    def table_rows(self) -> dict[str, int]:
        """Rows by table, where the sink was one and got any."""
        table = self.details.get(TABLE)
        return {str(table["sink"]): table["rows"]} if table else {}

    @property
    def written(self) -> dict[str, int]:
        """Records by target partition, ``{"topic-partition": n}``, and rows by table."""
        return {**{f"{r.topic}-{r.partition}": r.records for r in self.receipts}, **self.table_rows}

    @property
    def dead_letters(self) -> int:
        """Number of records written to the dead-letter topic, because the process function raised."""
        return int(self.details.get(DEAD_LETTERS, 0))

    @property
    def counts(self) -> str:
        """The counts as text: ``10 read (2 of them late), 8 written``."""
        late = f" ({self.records_late} of them late)" if self.records_late > 0 else ""
        dead = f" (dead letters: {self.dead_letters})" if self.dead_letters else ""
        return f"{self.records_read} read{late}, {self.records_written} written{dead}"

    def _content(self) -> Mapping[str, Any]:
        return {
            "run_key": self.run_key,
            "pipeline": self.pipeline,
            "mode": self.mode,
            "run_id": self.run_id,
            "clear_number": self.clear_number,
            "try_number": self.try_number,
            "group_id": self.group_id,
            "ranges": [r.to_list() for r in self.ranges],
            "records_read": dict(self.records_read_by_partition),
            "records_late": self.records_late,
            "receipts": [r.to_dict() for r in self.receipts],
            "producer": self.producer.to_dict(),
            "started_at": self.started_at,
            "staged_at": self.staged_at,
            "trace": [list(step) for step in self.trace],
            "details": dict(self.details),
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> RunRecord:
        return cls(
            run_key=text(data["run_key"]),
            pipeline=checked_name("pipeline", data["pipeline"]),
            mode=_mode(data["mode"]),
            run_id=text(data["run_id"]),
            clear_number=integer(data["clear_number"], 0),
            try_number=integer(data["try_number"], 0),
            group_id=checked_name("group_id", data["group_id"]),
            ranges=tuple(_range(*each) for each in data["ranges"]),
            records_read_by_partition={text(tp): integer(n, -1) for tp, n in data["records_read"].items()},
            records_late=integer(data.get("records_late", 0), -1),
            receipts=tuple(PartitionReceipt.from_dict(r) for r in data["receipts"]),
            producer=_producer(**data["producer"]),
            started_at=text(data["started_at"]),
            staged_at=text(data["staged_at"]),
            trace=tuple((text(s), _seconds(t)) for s, t in data["trace"]),
            details=_details(data["details"]),
        )

    def summary(self) -> dict[str, Any]:
        """Return the small JSON-able form for logs and XCom."""
        return {
            "state": self.state,
            "found": self.found,
            "run_key": self.run_key,
            "run_id": self.run_id,
            "clear_number": self.clear_number,
            "try_number": self.try_number,
            "mode": self.mode,
            "records_read": self.records_read,
            "records_late": self.records_late,
            "records_written": self.records_written,
            "dead_letters": self.dead_letters,
            "rounds": int(self.details.get(ROUNDS, 1)),
            "ranges": [r.to_list() for r in self.ranges],
            "written": self.written,
            "table": self.details.get(TABLE),
            "lag": self.details.get("lag"),
            "undecided": self.details.get("undecided", 0),
            "notes": list(self.details.get("notes", ())),
        }


def _mode(value: Any) -> ModeName:
    if text(value) not in _MODES:
        raise ValueError(f"{value!r} is not one of {', '.join(sorted(_MODES))}")
    return value


def _range(topic: Any, partition: Any, start: Any, end: Any) -> OffsetRange:
    return OffsetRange(topic_name(topic), integer(partition, 0), integer(start), integer(end))


def _producer(transactional_id: Any, producer_id: Any, producer_epoch: Any, **_: Any) -> ProducerIdentity:
    return ProducerIdentity(text(transactional_id), integer(producer_id), integer(producer_epoch))


def _seconds(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is not a number of seconds")
    return float(value)


def _details(value: Any) -> dict[str, Any]:
    """Return the details; checks those that are used anywhere except on the record's page."""
    details = json_object(value)
    for name in (DEAD_LETTERS, ROUNDS, "lag", "undecided"):
        if name in details:
            integer(details[name], 0)
    for note in _list(details.get("notes", [])):
        text(note)
    for topic_id in json_object(details.get(TOPIC_IDS, {})).values():
        text(topic_id)
    json_object(details.get("versions", {}))
    if TABLE in details:
        _check_table(json_object(details[TABLE]))
    if details.get(WORK) is not None:
        _check_work(json_object(details[WORK]))
    task = details.get(AIRFLOW)
    if isinstance(task, dict) and any("\0" in name for name in task.values() if isinstance(name, str)):
        raise ValueError("a name of the task holds a NUL, which no database takes")
    return details


def _check_table(table: Mapping[str, Any]) -> None:
    text(table["sink"])
    text(table["uuid"])
    TableReceipt.from_dict(table)
    for snapshot in _list(table.get(REPLACED, [])):
        integer(snapshot)


def _check_work(work: Mapping[str, Any]) -> None:
    for words in (_list(work["topics"]), _list(work.get("interval", ["", ""]))):
        for word in words:
            text(word)
    if len(work.get("interval", ["", ""])) != 2:  # noqa: PLR2004
        raise ValueError("an interval has two ends")
    text(work["mode"])
    for name in ("sink", "key", "origin"):
        text(work.get(name, ""))
    integer(work.get("partition", 0), 0)
    flag(work.get("advance", False))
    for offsets in _list(work.get("ranges", [])):
        _range(*offsets)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def named_writer(value: str) -> tuple[int, int] | None:
    """Return producer id and epoch in the value of a ledger record; None if it does not name them."""
    try:
        named = json.loads(value)["producer"]
        return named["producer_id"], named["producer_epoch"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
