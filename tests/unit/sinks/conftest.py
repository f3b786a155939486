"""Tables of each kind, empty, in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lakes import DeltaLake, IcebergLake


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
