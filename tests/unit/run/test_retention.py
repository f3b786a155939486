"""How long a topic keeps records, by its settings."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.run.retention import kept

NOW = dt.datetime(2026, 11, 27, tzinfo=dt.timezone.utc)
SINCE_1970 = (NOW - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("milliseconds", "keeps"),
    [
        (0, dt.timedelta(0)),
        (604_800_000, dt.timedelta(days=7)),
        (SINCE_1970, dt.timedelta(milliseconds=SINCE_1970)),
        (SINCE_1970 + 1, None),
        (2**46 - 1, None),
        (2**63 - 1, None),
        (-1, None),
    ],
    ids=["nothing", "a week", "since 1970", "longer", "2,000 years", "Kafka's longest", "for ever"],
)
def test_a_topic_that_keeps_records_from_before_1970_keeps_them_for_ever(
    milliseconds: int, keeps: dt.timedelta | None
) -> None:
    """No record is older, and datetime does not go back that far."""
    assert kept({"retention.ms": str(milliseconds)}, NOW) == keeps
