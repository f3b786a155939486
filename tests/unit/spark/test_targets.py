"""Records that a topic's settings refuse are found before they are sent, and no others are refused."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from airflow_eos.exceptions import RecordRefused
from airflow_eos.spark.targets import CLOCKS_DIFFER_MS, TargetTopic

HOUR = 3_600_000
NO_LIMIT = str(2**63 - 1)


def now():
    return time.time_ns() // 1_000_000


def times(*values):
    return pa.chunked_array([pa.array(values, pa.int64())])


@pytest.mark.parametrize(
    ("settings", "needs_keys"),
    [
        ({"cleanup.policy": "compact"}, True),
        ({"cleanup.policy": "delete,compact"}, True),
        ({"cleanup.policy": "delete"}, False),
        ({}, False),
    ],
)
def test_a_compacted_topic_needs_keys(settings, needs_keys):
    """The policy is a list; if it may not be read, the broker decides."""
    target = TargetTopic.of("t", {0: 1}, settings)
    assert target.needs_keys is needs_keys
    some = pa.chunked_array([pa.array([b"k", None], pa.binary())])
    for key in (None, some):
        if needs_keys:
            with pytest.raises(RecordRefused, match=r"of 2 records for topic t have no key"):
                target.check(2, key, None)
        else:
            target.check(2, key, None)
    target.check(1, some.slice(0, 1), None)


@pytest.mark.parametrize(
    ("settings", "before", "after"),
    [
        ({"message.timestamp.before.max.ms": "5", "message.timestamp.after.max.ms": "7"}, 5, 7),
        ({"message.timestamp.before.max.ms": NO_LIMIT, "message.timestamp.after.max.ms": "7"}, 2**63 - 1, 7),
        ({"message.timestamp.difference.max.ms": "9"}, 9, 9),
        ({"message.timestamp.difference.max.ms": NO_LIMIT}, 2**63 - 1, 2**63 - 1),
        ({}, 2**63 - 1, 2**63 - 1),
    ],
)
def test_limits_of_timestamps_are_those_of_the_topic(settings, before, after):
    """Brokers before 4.0 have one setting for both; LogAppendTime has no limits."""
    target = TargetTopic.of("t", {0: 1}, {"message.timestamp.type": "CreateTime", **settings})
    assert (target.before_ms, target.after_ms) == (before, after)
    target = TargetTopic.of("t", {0: 1}, {"message.timestamp.type": "LogAppendTime", **settings})
    assert (target.before_ms, target.after_ms) == (2**63 - 1, 2**63 - 1)


@pytest.mark.parametrize("off", [1, -1])
def test_a_timestamp_is_refused_here_only_far_beyond_the_limits(off):
    """This host's clock is not the broker's."""
    target = TargetTopic("t", {0: 1}, before_ms=HOUR, after_ms=HOUR)
    near, far = now() + off * (HOUR + CLOCKS_DIFFER_MS // 2), now() + off * (2 * HOUR + CLOCKS_DIFFER_MS)
    target.check(2, None, times(now(), near))
    with pytest.raises(RecordRefused, match=f"timestamp {far} ms"):
        target.check(3, None, times(now(), None, far))
    target.check(2, None, times(now(), -1))
    assert target.takes_timestamp(-1)
    assert not target.takes_timestamp(near)
    assert target.takes_timestamp(now())


def test_any_timestamp_from_1970_on_is_taken_where_there_is_no_limit():
    """Also the largest number, and -1. Brokers accept earlier ones, but then cannot compact the log."""
    target = TargetTopic("t", {0: 1})
    target.check(4, None, times(-1, None, 0, 2**63 - 1))
    target.check(1, None, times(None))
    for early in (-2, -(2**63)):
        with pytest.raises(RecordRefused, match=rf"timestamp {early} ms, before 1970: .*or none \("):
            target.check(2, None, times(-1, early))
        assert not target.takes_timestamp(early)
