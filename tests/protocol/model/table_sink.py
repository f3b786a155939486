"""The model's table: its head, its property and its rows, changed by compare-and-set only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.exceptions import TableRewritten
from airflow_eos.model.table import (
    DataFileMade,
    EarlierRows,
    PublishedRuns,
    TableCommit,
    TableLayout,
    TableReceipt,
)
from airflow_eos.table_ports import TableMoved
from tests.protocol.model.explorer import Fault, Run

NAME = "iceberg:c/db.t"
SCOPE, TOKEN, BARRED = "eos.scope", "eos.token", "eos.barred"


@dataclass(frozen=True)
class Snapshot:
    """What a commit added, as its summary has it."""

    number: int
    rows: int
    summary: Mapping[str, str]


@dataclass(frozen=True)
class ModelVersion:
    """The table as it was when it was loaded."""

    head: int
    layout: TableLayout
    property_text: str | None
    snapshots: tuple[Snapshot, ...]

    @property
    def published(self) -> PublishedRuns:
        return PublishedRuns.from_json(self.property_text)

    def snapshot_of(self, scope: str, token: int) -> TableReceipt | None:
        for snapshot in self.snapshots:
            summary = snapshot.summary
            if summary.get(SCOPE) == scope and summary.get(TOKEN) == str(token) and BARRED not in summary:
                return TableReceipt(snapshot.number, 1, snapshot.rows)
        return None


@dataclass
class ModelTable:
    """The table itself, shared by all processes.

    :param compares: whether a commit on an outdated head is refused.
    """

    compares: bool = True
    head: int = 0
    property_text: str | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    rows_by_snapshot: dict[int, list[str]] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        return [value for rows in self.rows_by_snapshot.values() for value in rows]

    def fingerprint(self) -> str:
        return repr((self.head, self.property_text, self.snapshots, self.rows_by_snapshot))

    def saved(self) -> tuple[Any, ...]:
        return self.head, self.property_text, tuple(self.snapshots), dict(self.rows_by_snapshot)

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.head, self.property_text, snapshots, rows = saved
        self.snapshots, self.rows_by_snapshot = list(snapshots), dict(rows)

    def version(self) -> ModelVersion:
        layout = TableLayout("uuid", 0, 0)
        return ModelVersion(self.head, layout, self.property_text, tuple(self.snapshots))

    def append(self, on: int, change: TableCommit) -> TableReceipt:
        """Commit, or refuse.

        :param on: the head that the writer loaded.
        :raises TableMoved: the head has changed since.
        :raises TableRewritten: rows that are to be replaced are missing.
        """
        if self.compares and on != self.head:
            raise TableMoved(f"the head is {self.head}, not {on}")
        self.refuse_rewritten(change.replaces)
        for earlier in change.replaces:
            self.rows_by_snapshot.pop(earlier.snapshot, None)
        self.head += 1
        receipt = change.receipt(self.head)
        self.property_text = change.published_with(receipt).to_json()
        self.snapshots.append(Snapshot(self.head, receipt.rows, dict(change.summary)))
        self.rows_by_snapshot[self.head] = [value for file in change.files for value in json.loads(file.data)]
        return receipt

    def refuse_rewritten(self, replaces: Sequence[EarlierRows]) -> None:
        for earlier in replaces:
            rows = self.rows_by_snapshot.get(earlier.snapshot, [])
            if len(rows) != earlier.receipt.rows:
                raise TableRewritten(f"snapshot {earlier.snapshot}: {len(rows)} rows are there")

    def foreign_commit(self) -> None:
        """Another writer, which knows nothing of our runs, compacts the table."""
        self.head += 1
        self.snapshots.append(Snapshot(self.head, 0, {}))

    def expire_snapshots(self) -> None:
        """Expire all but the newest."""
        del self.snapshots[:-1]


class ModelTableSink:
    """Implements ``airflow_eos.table_ports.TableSink`` for one process; loads and commits are steps."""

    name = NAME

    def __init__(self, run: Run, table: ModelTable) -> None:
        self._run, self._table = run, table

    def load(self, *, to_write: bool = True) -> ModelVersion:
        version: ModelVersion = self._run.step("look at the table", self._table.version)
        return version

    def writer(self, version: ModelVersion, label: str) -> str:
        del version
        return label

    def refuse_rewritten(self, version: ModelVersion, replaces: Sequence[EarlierRows]) -> None:
        del version
        self._run.step("look for the rows", lambda: self._table.refuse_rewritten(replaces))

    def commit(self, version: ModelVersion, change: TableCommit) -> TableReceipt:
        def append() -> TableReceipt:
            return self._table.append(version.head, change)

        def late() -> None:
            with suppress(TableMoved, TableRewritten):
                append()

        faults = (Fault.FAIL, Fault.LOSE, Fault.DIE, Fault.DELAY)
        receipt: TableReceipt = self._run.step("commit to the table", append, faults, late)
        return receipt


def data_file(values: Sequence[str]) -> DataFileMade:
    """Return a data file with these rows."""
    return DataFileMade(json.dumps(list(values)).encode(), len(values), 1)


def sink_of(run: Run, scene: Any) -> ModelTableSink | None:
    """Return a process's own handle on the scene's table; None if the scene has none."""
    table: ModelTable | None = getattr(scene, "table", None)
    return None if table is None else ModelTableSink(run, table)
