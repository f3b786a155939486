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
    """A commit was refused: another one came between. Nothing of it is in the table."""


class TableWriter(Protocol):
    """Writes data files in Spark tasks, pickled with the plan; no reader sees them."""

    @property
    def name(self) -> str:
        """Return the table, in words."""

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
        """Write rows, of which :meth:`columns` returned some, as data files.

        Their names are never used twice: what died leaves files that no commit names.
        """

    @property
    def flush_bytes(self) -> int:
        """Bytes of rows in memory that one call of :meth:`write` takes at most, about."""


class TableVersion(Protocol):
    """A table as it was when it was looked at: what a commit compares with."""

    @property
    def layout(self) -> TableLayout:
        """Return what data files are written for."""

    @property
    def published(self) -> PublishedRuns:
        """Return what the table says of the pipeline's runs."""

    def snapshot_of(self, scope: str, token: int) -> TableReceipt | None:
        """Return what some snapshot says that a run appended: where the property of the table was lost."""


class TableSink(Protocol):
    """A table that a run appends to."""

    @property
    def name(self) -> str:
        """Return the table, in words."""

    def load(self, *, to_write: bool = True) -> TableVersion:
        """Look at the table now.

        :param to_write: whether it must be of a kind that can be written.
        :raises UnknownTable: there is none, or it is not of that kind.
        """

    def writer(self, version: TableVersion, label: str) -> TableWriter:
        """Return what writes data files for this version.

        :param label: part of their names, so that files of runs that died can be told.
        """

    def commit(self, version: TableVersion, change: TableCommit) -> TableReceipt:
        """Append files, and say so in the table, in one compare-and-set on the version that was looked at.

        Nothing is retried here. An append without files is one all the same: it moves the table, so that
        commits on an older version are refused. What the change replaces is taken out in the same
        compare-and-set.

        :raises TableMoved: the table is no longer as it was looked at; nothing was changed.
        :raises TableRewritten: what it replaces is not there as it was appended; nothing was changed.
        :raises Exception: anything else leaves the outcome unknown.
        """

    def refuse_rewritten(self, version: TableVersion, replaces: Sequence[EarlierRows]) -> None:
        """Look whether rows are there as they were written, and may be taken out.

        :raises TableRewritten: they are not.
        :raises UnknownTable: the table lets no rows be taken out.
        :raises AuthorizationFailed: these credentials do not.
        """

    def close(self) -> None:
        """Give up connections; a second call does nothing."""
