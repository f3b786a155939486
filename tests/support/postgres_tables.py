"""A PostgreSQL table as a sink in tests, created and counted by ``psql``, which shares no code with us."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos_testing.postgres import PostgresServer

COLUMNS = "id bigint NOT NULL, name text"


@dataclass
class Database:
    """A database with one empty table ``t`` in a schema of its own."""

    server: PostgresServer
    schema: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self._staging_of_others = set(self._all_staging())

    @property
    def properties(self) -> dict[str, str]:
        return {"host": str(self.server.home), "user": "postgres", "dbname": "postgres"}

    @property
    def table(self) -> str:
        return f"{self.schema}.t"

    def create(self, columns: str = COLUMNS) -> None:
        """Create schema and table."""
        self.sql(f"CREATE SCHEMA IF NOT EXISTS {self.schema}; CREATE TABLE {self.table} ({columns})")

    def sink(self, **changes: Any) -> PostgresTable:
        return PostgresTable(
            **{"name": self.table, "connection": "c", "properties": self.properties, **changes}
        )

    def sql(self, statement: str) -> list[list[str]]:
        return self.server.query(statement)

    def values(self, column: str = "name") -> list[str]:
        """Return a column's sorted values."""
        return sorted(row[0] for row in self.sql(f"SELECT {column} FROM {self.table}"))

    def counts(self, column: str = "name") -> dict[str, int]:
        """Return the number of rows for each value of a column."""
        return dict(sorted(Counter(self.values(column)).items()))

    def staging(self) -> list[str]:
        """Return the staging tables created after this object: other tests leave some on the server."""
        return [table for table in self._all_staging() if table not in self._staging_of_others]

    def _all_staging(self) -> list[str]:
        tables = self.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'airflow_eos'")
        return [name for (name,) in tables if name != "published"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server shared by the tests of a session; each test has its own tables."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> Database:
    """A database with the empty table ``t``."""
    db = Database(postgres_server)
    db.create()
    return db
