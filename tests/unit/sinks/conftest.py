"""Tables of Iceberg in a catalog in SQLite, without a server, and of a PostgreSQL that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.postgres_tables import database, postgres_server

__all__ = ["database", "postgres_server", "warehouse"]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Properties of a catalog that holds the empty table ``db.t``."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("c", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema=SCHEMA)
    yield properties
    catalog.close()
