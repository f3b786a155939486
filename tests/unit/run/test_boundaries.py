"""A boundary needs its neighbours, not all boundaries that were ever pinned."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import IntervalNotReady, IntervalUnaccountable
from airflow_eos.ledger import keys
from airflow_eos.ledger.keys import utc_text
from airflow_eos.ledger.records.boundary import Boundary, Deleted
from airflow_eos.model.kafka import LogBounds, TimedOffset, TopicDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.ranges import timestamp_of as timestamp
from airflow_eos.run import boundaries
from airflow_eos.run.boundaries import Boundaries, Pinned, neighbours

TOPIC = TopicDescription("orders", "now", {0: 1, 1: 1})
BEFORE = TopicDescription("orders", "before", {0: 1, 1: 1})
START = dt.datetime(2026, 11, 1, tzinfo=dt.timezone.utc)


def moment(hours):
    return START + dt.timedelta(hours=hours)


def ms(hours):
    return timestamp(moment(hours))


class Log:
    """A cluster whose logs give the configured answers for any timestamp."""

    def __init__(self, answers, stable, start):
        self.offsets, self.stable, self.start = answers, stable, start

    def log_starts(self, partitions):
        return dict.fromkeys(partitions, self.start)

    def log_bounds(self, partitions, *, ends):
        assert not ends
        return LogBounds(self.log_starts(partitions), dict.fromkeys(partitions, self.stable), {})

    def max_timestamps(self, partitions):
        timed = [offset for offset in self.offsets if offset is not None]
        return {tp: int(moment(15).timestamp() * 1000) if timed else -1 for tp in partitions}

    def offsets_for_time(self, partitions, timestamp, *, markers=False):
        by_partition = {TopicPartition("orders", n): offset for n, offset in enumerate(self.offsets)}
        if timestamp == 0:  # the first remaining record is after every moment: deleted ones may be, too
            return {tp: TimedOffset(self.start, int(moment(100).timestamp() * 1000)) for tp in partitions}
        return {
            tp: None if by_partition[tp] is None else TimedOffset(by_partition[tp], timestamp)
            for tp in partitions
        }


def pin(cluster, hours, values, *, near, topic=TOPIC):
    """Return the boundary at a moment, computed from its neighbours or from all."""
    maker = Boundaries(cluster, SimpleNamespace(), "eos", lambda: moment(1000))
    around = neighbours("orders", moment(hours))
    before = sorted((key for key in values if key < around.key), reverse=True)[: around.needed]
    above = sorted(key for key in values if key > around.key)[: around.needed]
    some = {key: values[key] for key in (*before, *above)} if near else values
    pinned = Pinned(topic, moment(hours), some, lambda: values)
    return maker.compute(topic, moment(hours), dt.timedelta(), pinned, accept_deleted=True)


offsets = st.none() | st.integers(0, 40)
pins = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from([TOPIC, TOPIC, TOPIC, BEFORE]),
        st.tuples(offsets, offsets),
        st.integers(0, 40),
        st.sampled_from([0, 0, 7]),
    ),
    max_size=25,
    unique_by=lambda row: row[0],
)


@given(pins, st.integers(1, 3))
def test_those_beside_it_say_what_all_say(history, needed):
    """Pinned in any order, from logs with arbitrary answers, deleted heads and recreated topics."""
    values = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundaries, "NEIGHBOURS", needed)
        for hours, topic, answers, stable, start in history:
            cluster = Log(answers, stable, start)
            by_all = pin(cluster, hours, values, near=False, topic=topic)
            by_near = pin(cluster, hours, values, near=True, topic=topic)
            assert by_near == by_all
            values[keys.boundary_key("orders", moment(hours))] = by_all.to_json()


@pytest.mark.parametrize(
    ("highest", "unproven", "proves"),
    [
        ({0: ms(9)}, False, True),
        ({0: ms(10)}, False, False),
        ({0: ms(11)}, False, False),
        ({0: ms(11) * 1000}, False, False),
        ({0: -1}, False, False),
        ({0: -1}, True, True),
        ({}, False, False),
    ],
    ids=["older", "equal", "ahead", "microseconds", "nothing-left", "loss-accepted", "not-recorded"],
)
def test_only_older_timestamps_prove_what_stood_in_the_log(highest, unproven, proves):
    """The driver's clock says 8:00 in each case: producers may be ahead of it."""
    head = {0: Deleted(5, None)} if unproven else {}
    other = Boundary("orders", "now", utc_text(moment(8)), {0: 3}, utc_text(moment(8)), {0: 5}, head, highest)
    lowest, _ = boundaries._bounds(0, utc_text(moment(10)), [other])
    assert lowest == (5 if proves else 3)


@pytest.mark.parametrize(
    ("clock", "proves"), [(11, False), (10, True), (8, True)], ids=["right", "on", "behind"]
)
def test_a_loss_is_accepted_at_the_time_of_the_drivers_clock(clock, proves):
    """Nothing is left in the log, and a run accepts that at 11:00: this proves nothing about 10:00.

    A driver whose clock is behind records an acceptance before 10:00, so the boundary of 10:00 counts as
    proven: only the record of the run that accepted it tells what was lost until then.
    """
    emptied = Log((None, None), stable=5, start=5)
    maker = Boundaries(emptied, SimpleNamespace(), "eos", lambda: moment(clock))
    accepted = maker.compute(
        TOPIC, moment(8), dt.timedelta(), Pinned(TOPIC, moment(8), {}), accept_deleted=True
    )
    assert set(accepted.unproven) == {0, 1}
    values = {keys.boundary_key("orders", moment(8)): accepted.to_json()}
    later = Boundaries(emptied, SimpleNamespace(), "eos", lambda: moment(1000))
    arguments = (TOPIC, moment(10), dt.timedelta(), Pinned(TOPIC, moment(10), values))
    if proves:
        assert later.compute(*arguments).unproven == {}
        return
    with pytest.raises(IntervalUnaccountable):
        later.compute(*arguments)


@pytest.mark.parametrize(
    ("clock", "is_fixed"), [(-0.5, False), (0, False), (0.4, False), (0.5, True), (2, True)]
)
def test_the_clock_of_the_driver_decides_how_long_an_idle_partition_is_waited_for(clock, is_fixed):
    """A slow one waits; a fast one pins the boundary at the log end: later records are after it."""
    lateness = dt.timedelta(minutes=30)
    maker = Boundaries(Log((3, None), 9, 0), SimpleNamespace(), "eos", lambda: moment(1 + clock))
    compute = (maker.compute, TOPIC, moment(1), lateness, Pinned(TOPIC, moment(1), {}))
    if is_fixed:
        assert compute[0](*compute[1:]).offsets == {0: 3, 1: 9}
        return
    with pytest.raises(IntervalNotReady, match="allowed_lateness") as refused:
        compute[0](*compute[1:])
    assert refused.value.until == moment(1.5)


class Untimed(Log):
    """A log in which no record is found by timestamp."""

    def __init__(self):
        super().__init__((None, None), stable=9, start=5)

    def offsets_for_time(self, partitions, timestamp, *, markers=False):
        return dict.fromkeys(partitions)

    def max_timestamps(self, partitions):
        return dict.fromkeys(partitions, -1)


def test_records_without_a_timestamp_are_unaccountable_not_late():
    """Waiting does not help if no timestamp is left."""
    pinned = Pinned(TOPIC, moment(1), {})
    compute = Boundaries(Untimed(), SimpleNamespace(), "eos", lambda: moment(1000)).compute
    with pytest.raises(IntervalUnaccountable, match="no record is found by time"):
        compute(TOPIC, moment(1), dt.timedelta(), pinned)
    assert set(compute(TOPIC, moment(1), dt.timedelta(), pinned, accept_deleted=True).unproven) == {0, 1}
