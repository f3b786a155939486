"""PostgreSQL tables as sinks: which table a run appends to, or updates by key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import TEXT, word
from airflow_eos.model.sink_table import SinkTable

_NAME = re.compile(r"postgres:(?P<connection>.+)/(?P<name>[^./]+\.[^./]+)")


@dataclass(frozen=True, slots=True)
class PostgresTable(SinkTable):
    """A PostgreSQL table that a run appends to, or updates by key.

    ``process`` returns columns of the table. The rows of a run and the note that the run is published are one
    transaction of the database; the ledger follows. Each record is in the table once, whatever dies or is
    started twice.

    ::

        ReadProcessWriteOperator(..., sink=PostgresTable("public.flights", connection="warehouse"))
        ReadProcessWriteOperator(
            ..., sink=PostgresTable("public.customers", connection="warehouse", mode="upsert", key=["id"])
        )

    :param name: schema and table, separated by a dot, spelt as the catalog has them.
    :param connection: in Airflow: connection of type ``postgres``.
    :param mode: ``append`` inserts each row; ``upsert`` replaces the row that has the same key.
    :param key: with ``upsert``: columns of a primary key or unique index of the table.
    :param reprocess: what a run with ``on_committed="reprocess"`` does with the rows of the committed run:
        ``append`` leaves them, ``replace`` removes them in the commit that appends the new ones, or is
        refused where they are not in the table as they were written; not with ``mode="upsert"``.
    :param properties: in libpq's names (``host``, ``dbname``, ``password``), where no connection has them;
        never shown.
    :raises ConfigurationError: naming parameter and value.
    """

    KIND: ClassVar[str] = "postgres"

    name: str
    connection: str = "postgres_default"
    mode: Literal["append", "upsert"] = "append"
    key: Sequence[str] = ()

    def __post_init__(self) -> None:
        TEXT.check("PostgresTable(name=...)", self.name)
        parts = self.name.split(".")
        if len(parts) != 2 or not all(part.strip() for part in parts):  # noqa: PLR2004 - schema and table
            raise ConfigurationError(
                f"PostgresTable(name=...) must be schema and table, as 'public.flights', got {self.name!r}"
            )
        TEXT.check("PostgresTable(connection=...)", self.connection)
        if "/" in self.name:
            raise ConfigurationError(
                f"PostgresTable(name=...) must be without '/', got {self.name!r}: records name a table as "
                "postgres:connection/name"
            )
        word("append", "upsert").check("PostgresTable(mode=...)", self.mode)
        if isinstance(self.key, str) or not all(isinstance(column, str) and column for column in self.key):
            raise ConfigurationError(
                f"PostgresTable(key=...) must be a list of column names, as ['id'], got {self.key!r}"
            )
        if len(set(self.key)) != len(self.key):
            raise ConfigurationError(f"PostgresTable(key=...) names a column twice: {list(self.key)!r}")
        if bool(self.key) != (self.mode == "upsert"):
            raise ConfigurationError(
                f"PostgresTable(mode={self.mode!r}, key={list(self.key)!r}): mode='upsert' needs the columns "
                "of a unique key, and mode='append' has none"
            )
        self._check_reprocess()
        if self.reprocess == "replace" and self.mode == "upsert":
            raise ConfigurationError(
                "PostgresTable(mode='upsert', reprocess='replace'): nobody has the values any more that an "
                "update has overwritten; with mode='upsert' a reprocessing updates the rows by key"
            )
        object.__setattr__(self, "key", tuple(self.key))

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """Return both parts of the name."""
        schema, _, table = self.name.partition(".")
        return schema, table

    @property
    def privileges(self) -> tuple[str, ...]:
        """Return the privileges on the table that a run needs."""
        if self.mode == "upsert":
            return ("SELECT", "INSERT", "UPDATE")
        return ("SELECT", "INSERT", "DELETE") if self.reprocess == "replace" else ("INSERT",)

    @property
    def connection_id(self) -> str:
        """Return the connection of the database."""
        return self.connection

    @property
    def dataset(self) -> tuple[str, str]:
        """Return the database's connection as the namespace, and the table's full name."""
        return f"postgres://{self.connection}", self.name

    @classmethod
    def named(cls, text: str) -> PostgresTable | None:
        """Return the table with this name, as in run records; None if it is of another kind."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(match["name"], match["connection"])

    def __str__(self) -> str:
        return f"postgres:{self.connection}/{self.name}"
