"""The searches run thousands of attempts, whose logs would bury a counter-example."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence logging while a search runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
