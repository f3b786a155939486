"""How long a transaction has been open: the coordinator has its start, this machine the present time."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.model.kafka import TransactionDescription, TransactionState
from airflow_eos.operations.open_transactions import TransactionTimes

BEGAN = dt.datetime(2026, 11, 20, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("ahead", "age"), [(0, 30.0), (-600, 0.0), (600, 630.0)], ids=["equal", "behind", "ahead"]
)
def test_the_age_of_a_transaction_is_by_two_clocks(ahead: float, age: float) -> None:
    """A slow clock shows nothing as old, a fast one everything too early; the start is right."""
    now = BEGAN + dt.timedelta(seconds=30 + ahead)
    begin = int(BEGAN.timestamp() * 1000)
    status = TransactionDescription(TransactionState.ONGOING, 4000, 1, start_ms=begin, timeout_ms=60_000)
    assert TransactionTimes.of(status, now).to_dict() == {
        "started": "2026-11-20T12:00:00.000Z",
        "age_seconds": age,
        "timeout_seconds": 60.0,
    }
