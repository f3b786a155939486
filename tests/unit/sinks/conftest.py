"""Tables of each kind, empty: in files, and of a PostgreSQL that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.postgres_tables import database, postgres_server

__all__ = ["database", "postgres_server"]


@pytest.fixture(autouse=True)
def catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SqlCatalog]]:
    """Every catalog that a test opens, closed at its end: Python 3.13 reports unclosed ones."""
    opened: list[SqlCatalog] = []
    make = SqlCatalog.__init__

    def opening(catalog: SqlCatalog, *args: str, **properties: str) -> None:
        make(catalog, *args, **properties)
        opened.append(catalog)

    monkeypatch.setattr(SqlCatalog, "__init__", opening)
    yield opened
    for catalog in opened:
        catalog.close()


@pytest.fixture(params=[IcebergLake, DeltaLake], ids=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergLake | DeltaLake]:
    opened = request.param(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[IcebergLake]:
    opened = IcebergLake(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def delta(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path)


@pytest.fixture
def warehouse(iceberg: IcebergLake) -> dict[str, str]:
    """Properties of the catalog of an Iceberg table ``db.t``."""
    return iceberg.properties
