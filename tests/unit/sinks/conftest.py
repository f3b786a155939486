"""Tables of each kind, empty: in files, and of a PostgreSQL that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.postgres_tables import database, postgres_server

__all__ = ["database", "postgres_server"]


@pytest.fixture(params=[IcebergLake, DeltaLake], ids=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IcebergLake | DeltaLake]:
    made = request.param(tmp_path)
    yield made
    made.close()


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[IcebergLake]:
    made = IcebergLake(tmp_path)
    yield made
    made.close()


@pytest.fixture
def delta(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path)


@pytest.fixture
def warehouse(iceberg: IcebergLake) -> dict[str, str]:
    """Properties of the catalog of an Iceberg table ``db.t``."""
    return iceberg.properties
