"""Small ranges are fetched together; what an answer lacks is left to the reader of a single range."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import UnknownTopic
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.wire.fetch_together import GROUP_SIZE, GROUP_SPAN, SMALL_SPAN, first_answers, group_ranges
from tests.support.wire_requests import fetch_range
from tests.unit.wire.fakes import FakeConnections, kind_of
from tests.unit.wire.test_read_rules import logged

PARTITIONS = 6


class FakeLeaders(FakeConnections):
    """Two leaders of six partitions with 30 records each, in batches of ten; answers hold two batches."""

    def __init__(self, room=10**6):
        super().__init__({TopicPartition("src", p): p % 2 for p in range(PARTITIONS)})
        self.log = [logged(10 * n, 10) for n in range(3)]
        self.room = room
        self.codes = {}
        self.empty = set()

    @property
    def requested(self):
        """Return the partitions of each Fetch request."""
        return [
            [part.partition for topic in request.topics for part in topic.partitions]
            for _, request in self.requests
            if kind_of(request) == "Fetch"
        ]

    def handle(self, request, node):
        room, parts = self.room, []
        wanted = [part for topic in request.topics for part in topic.partitions]
        for part in wanted:
            assert node == part.partition % 2, "asked a broker that does not lead it"
            batches = [data for n, data in enumerate(self.log) if 10 * n + 10 > part.fetch_offset][:2]
            data = b"".join(batches) if room > 0 else b""
            lone = len(wanted) == 1
            if part.partition in self.empty and not lone:
                data = b""
            room -= len(data)
            parts.append(
                SimpleNamespace(
                    partition_index=part.partition,
                    error_code=0 if lone else self.codes.get(part.partition, 0),
                    records=data,
                    high_watermark=30,
                    last_stable_offset=30,
                    log_start_offset=0,
                    aborted_transactions=None,
                )
            )
        topic = SimpleNamespace(topic="src", partitions=parts)
        return SimpleNamespace(error_code=0, throttle_time_ms=0, responses=[topic])


@pytest.fixture
def leaders():
    fake = FakeLeaders()
    yield fake
    fake.close()


def read(leaders, ranges):
    """Return the offsets of each range, in the order of arrival."""
    arrived = []
    for number, first in first_answers(leaders, ranges):
        wanted = ranges[number]
        batches = fetch_range(
            leaders, wanted.topic, wanted.partition, wanted.start, wanted.end, first=first, stall_timeout=1.0
        )
        arrived.append((wanted.partition, [int(o) for batch in batches for o in batch.offset]))
    return arrived


def test_one_request_for_each_leader(leaders):
    """The first answers cover all six ranges: two requests."""
    ranges = [OffsetRange("src", p, 3, 17) for p in range(PARTITIONS)]
    assert read(leaders, ranges) == [(p, list(range(3, 17))) for p in range(PARTITIONS)]
    assert sorted(leaders.requested) == [[0, 2, 4], [1, 3, 5]]


def test_the_rest_of_a_range_is_read_alone(leaders):
    """Answers hold two batches of three."""
    ranges = [OffsetRange("src", p, 0, 30) for p in range(PARTITIONS)]
    assert read(leaders, ranges) == [(p, list(range(30))) for p in range(PARTITIONS)]
    assert sorted(leaders.requested) == sorted([[0, 2, 4], [1, 3, 5], *([p] for p in range(PARTITIONS))])


@pytest.mark.parametrize("code", [1, 3, 6, 29, 74, 56])
def test_an_error_is_left_to_the_reader_of_one_range(leaders, code):
    """Retriable or not: that reader retries by its own rules; the other ranges are not delayed."""
    leaders.codes = {2: code}
    ranges = [OffsetRange("src", p, 0, 20) for p in range(PARTITIONS)]
    assert read(leaders, ranges) == [(p, list(range(20))) for p in range(PARTITIONS)]
    assert leaders.requested.count([2]) == 1


def test_a_partition_for_which_there_was_no_room_is_read_alone():
    """An answer is limited in bytes: an empty partition in it proves nothing."""
    leaders = FakeLeaders(room=1)
    ranges = [OffsetRange("src", p, 0, 20) for p in range(PARTITIONS)]
    assert read(leaders, ranges) == [(p, list(range(20))) for p in range(PARTITIONS)]
    assert sorted(leaders.requested) == [[0, 2, 4], [1, 3, 5], [2], [3], [4], [5]]
    leaders.close()


def test_an_empty_part_of_an_answer_is_not_the_end(leaders):
    """Records that were not read must not count as read."""
    leaders.empty = {1, 4}
    ranges = [OffsetRange("src", p, 0, 20) for p in range(PARTITIONS)]
    assert read(leaders, ranges) == [(p, list(range(20))) for p in range(PARTITIONS)]


def test_a_topic_that_is_gone_is_the_business_of_the_reader(leaders, monkeypatch):
    """That reader's error names the range."""

    async def raise_unknown_topic(*_, **__):
        raise UnknownTopic("src")

    monkeypatch.setattr(leaders, "by_leader_async", raise_unknown_topic)
    ranges = [OffsetRange("src", p, 0, 20) for p in range(PARTITIONS)]
    assert [first for _, first in first_answers(leaders, ranges)] == [None] * PARTITIONS
    assert leaders.requested == []


def test_the_first_answer_must_be_of_the_range(leaders):
    """Otherwise the records before it would be skipped."""
    ((_, first), *_) = first_answers(leaders, [OffsetRange("src", p, 10, 20) for p in range(2)])
    with pytest.raises(ValueError, match="begins at 10, not at 0"):
        list(fetch_range(leaders, "src", 0, 0, 20, first=first))


@given(st.lists(st.integers(1, 2 * SMALL_SPAN), max_size=600))
def test_groups_hold_every_range_once_in_order(spans):
    """Groups are bounded in offsets and in number; a range that is not small is alone."""
    ranges = [OffsetRange("src", p, 0, span) for p, span in enumerate(spans)]
    groups = group_ranges(ranges)
    assert [number for group in groups for number in group] == list(range(len(spans)))
    for group in groups:
        assert len(group) <= GROUP_SIZE
        assert len(group) == 1 or sum(spans[n] for n in group) <= GROUP_SPAN
        assert len(group) == 1 or all(spans[n] <= SMALL_SPAN for n in group)
