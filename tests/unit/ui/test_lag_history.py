"""How far runs were behind their source, computed from their records alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.ui.drawings import bars_of
from airflow_eos.ui.lag_history import Lag, lags_of, seconds_behind
from airflow_eos.ui.moments import age_text
from tests.support.run_records import run_record

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)
IDS = {"src": "1"}


def run(
    number: int, *ranges: tuple[int, int, int], left: Any = 0, name: str = "id", **changes: Any
) -> RunRecord:
    """A run that begins at the full minute of its number and takes ten seconds.

    :param ranges: each as partition, start and end.
    """
    details = {"topic_ids": IDS, "lag": left}
    fields: dict[str, Any] = {
        "run_key": f"p/{number}",
        "ranges": tuple(OffsetRange("src", *bounds) for bounds in ranges),
        "producer": ProducerIdentity(name, 1, number),
        "started_at": f"2026-11-21T11:{number:02}:00Z",
        "staged_at": f"2026-11-21T11:{number:02}:10Z",
        "details": details,
    }
    return run_record(**{**fields, **changes})


def of_interval(number: int, hour: int) -> RunRecord:
    ends = [f"2026-11-21T{hour:02}:00:00Z", f"2026-11-21T{hour + 1:02}:00:00Z"]
    details = {"topic_ids": IDS, "work": {"mode": "interval", "interval": ends}}
    return run(number, (0, number, number + 1), mode="interval", details=details)


def covered(*records: RunRecord, stable: int) -> Coverage:
    return coverage_of(records, {TopicPartition("src", 0): LogBounds(0, stable)}, IDS)


def test_a_cursors_run_waited_since_the_run_before_that_left_nothing() -> None:
    """Its input was not there when that run began; for the first run the wait is unknown."""
    records = [
        run(0, (0, 0, 5)),
        run(1, (0, 5, 8)),
        run(2, (0, 8, 9), left=4),
        run(3, (0, 9, 13)),
        run(4, (0, 13, 13)),
    ]
    assert list(lags_of(records).values()) == [
        Lag(5, None),
        Lag(3, 70.0),
        Lag(5, 70.0),
        Lag(4, 130.0),  # the run at minute 2 left them: they may have waited since minute 1
        Lag(0, 0.0),
    ]


def test_partitions_of_a_mapped_cursor_have_their_own_lag() -> None:
    """Each has its own transactional id."""
    records = [run(0, (0, 0, 5), name="a"), run(1, (1, 0, 5), name="b"), run(3, (0, 5, 6), name="a")]
    assert [lag.seconds for lag in lags_of(records).values()] == [None, None, 190.0]


def test_an_interval_is_late_since_its_end() -> None:
    """Whatever order a backfill commits in."""
    lags = lags_of([of_interval(5, 10), of_interval(6, 8)])
    assert list(lags.values()) == [Lag(None, 310.0), Lag(None, 2 * 3600 + 370.0)]


def test_a_run_that_does_not_say_what_it_left_has_an_unknown_lag() -> None:
    """A value that is not a number of offsets makes the record unreadable."""
    records = [run(0, (0, 0, 5)), run(1, (0, 5, 8), left=None), run(2, (0, 8, 9))]
    assert list(lags_of(records).values())[1:] == [Lag(None, 70.0), Lag(1, 130.0)]


@pytest.mark.parametrize("mode", ["explicit", "reprocess", "partition"])
def test_other_runs_have_no_lag(mode: str) -> None:
    assert lags_of([run(0, (0, 0, 5), mode=mode)]) == {"p/0": Lag()}


def test_the_lag_now_is_that_of_the_oldest_offset_that_waits() -> None:
    """Since the start of the newest run that left nothing in its partition; 0 if nothing waits."""
    records = [run(0, (0, 0, 5)), run(1, (0, 5, 8)), run(2, (0, 8, 9), left=1)]
    assert seconds_behind(records, covered(*records, stable=9), NOW) == 0.0
    assert seconds_behind(records, covered(*records, stable=10), NOW) == 59 * 60.0
    assert seconds_behind(records[2:], covered(*records, stable=10), NOW) is None


def test_the_lag_now_of_intervals_is_since_the_end_of_the_last_one() -> None:
    records = [of_interval(0, 10), of_interval(1, 8)]
    assert seconds_behind(records, covered(*records, stable=9), NOW) == 3600.0


def test_a_topic_that_may_not_be_seen_has_no_lag() -> None:
    records = [run(0, (0, 0, 5))]
    coverage = covered(*records, stable=9)
    unseen = Coverage(coverage.lanes, 1, unseen=("src",))
    assert seconds_behind(records, unseen, NOW) is None


def test_a_bar_for_each_run_and_the_same_in_words() -> None:
    """An unknown lag has a place but no bar; 0 has a small bar."""
    drawing = bars_of([None, 0.0, 60.0, 30.0], age_text)
    assert drawing is not None
    assert drawing["path"] == "M250 100v-2h200v2zM500 100v-100h200v100zM750 100v-50h200v50z"
    assert drawing["label"] == "last 30 s, at most 1 min in 3 runs"
    assert bars_of([None], age_text) is None
    assert bars_of([0.0], age_text) is not None
