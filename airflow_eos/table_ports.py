"""Interfaces of the run protocol to a table that is the sink; ``sinks`` implements them for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from airflow_eos.model.table import (
    DataFileMade,
    EarlierRows,
    PublishedRuns,
    TableCommit,
    TableLayout,
    TableReceipt,
)


class TableMoved(Exception):
    """A commit was refused because of a concurrent one; nothing of it is in the table."""


class TableWriter(Protocol):
    """Writes data files in Spark tasks, pickled with the plan; no reader sees them."""

    @property
    def name(self) -> str:
        """Return the table's name, as in run records."""

    def check(self, given: Any) -> None:
        """Compare an Arrow schema with the table's before anything is read.

        :raises ProcessFailed: as :meth:`columns`.
        """

    def columns(self, result: Any) -> Any:
        """Return the rows of an Arrow process as a table of the sink's columns, None where there are none.

        :raises ProcessFailed: a column is missing, unknown, or of a type that does not widen safely.
        :raises RecordRefused: a row has no value in a column that needs one.
        """

    def write(self, table: Any) -> Sequence[DataFileMade]:
        """Write rows that :meth:`columns` returned as data files.

        File names are never reused: a task that dies leaves files that no commit names.
        """

    @property
    def flush_bytes(self) -> int:
        """Approximate maximum size in memory, in bytes, of the rows for one call of :meth:`write`."""


class TableVersion(Protocol):
    """The state of a table when it was loaded, with which a commit compares it."""

    @property
    def layout(self) -> TableLayout:
        """Return the layout that data files are written for."""

    @property
    def published(self) -> PublishedRuns:
        """Return the table's notes about the pipeline's runs."""

    def snapshot_of(self, scope: str, token: int) -> TableReceipt | None:
        """Return the receipt of a run from a snapshot's summary, in case the table's property was lost."""


class TableSink(Protocol):
    """A table that a run appends to."""

    @property
    def name(self) -> str:
        """Return the table's name, as in run records."""

    def load(self, *, to_write: bool = True) -> TableVersion:
        """Load the current state of the table.

        :param to_write: whether it must be of a kind that can be written.
        :raises UnknownTable: there is none, or it is not of that kind.
        """

    def writer(self, version: TableVersion, label: str) -> TableWriter:
        """Return a writer of data files for this version.

        :param label: part of their names, which identifies the files of runs that died.
        """

    def commit(self, version: TableVersion, change: TableCommit) -> TableReceipt:
        """Append files and set the table's notes, in one compare-and-set on the version that was loaded.

        Nothing is retried here. An append without files is a commit, too: it changes the version, so that
        commits on an older one are refused. Rows that the change replaces are removed in the same
        compare-and-set.

        :raises TableMoved: the table has changed since it was loaded; this commit changed nothing.
        :raises TableRewritten: the rows to replace are not there as appended; nothing was changed.
        :raises Exception: anything else leaves the outcome unknown.
        """

    def refuse_rewritten(self, version: TableVersion, replaces: Sequence[EarlierRows]) -> None:
        """Check that rows are in the table as they were written, and may be removed.

        :raises TableRewritten: they are not as they were written.
        :raises UnknownTable: the table does not allow the removal of rows.
        :raises AuthorizationFailed: these credentials do not allow it.
        """

    def close(self) -> None:
        """Close connections; idempotent."""
