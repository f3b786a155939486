"""A reader that follows a topic through faults."""

from __future__ import annotations

from types import SimpleNamespace

import confluent_kafka
import pytest

from airflow_eos_testing.readers import follow_topic


class Message:
    """What the library returns: a record, or an error of its partition."""

    def __init__(self, partition, offset, *, refused=False):
        self._place = partition, offset
        self._refused = refused

    def error(self):
        return "offset out of range" if self._refused else None

    def topic(self):
        return "out"

    def partition(self):
        return self._place[0]

    def offset(self):
        return self._place[1]

    def timestamp(self):
        return (1, 0)

    def key(self):
        return None

    value = headers = key


class Library:
    """Replaces ``confluent_kafka.Consumer``: like it, silent about a partition after an error."""

    def __init__(self, script):
        self.script = list(script)
        self.assigned = []
        self.closed = False

    def list_topics(self, topic, timeout):
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def assign(self, places):
        self.assigned.append([(place.partition, place.offset) for place in places])

    def consume(self, count, timeout):
        return self.script.pop(0)

    def close(self):
        self.closed = True


@pytest.fixture
def follow(monkeypatch):
    """Follow a topic whose consumer returns these batches; return the places seen, and the consumer."""

    def run(*script):
        library = Library(script)
        monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: library)
        records = follow_topic({}, "out", ended=lambda: not library.script)
        return [(record.partition, record.offset) for record in records], library

    return run


def test_a_refused_partition_is_taken_up_behind_what_was_read(follow):
    """Both partitions are assigned again; records after the error are read again, not twice."""
    refusal = Message(1, 0, refused=True)
    first, later = [Message(0, 7), refusal, Message(0, 8)], [Message(0, 8), Message(1, 0)]
    seen, library = follow(first, later)
    assert seen == [(0, 7), (0, 8), (1, 0)]
    begin = confluent_kafka.OFFSET_BEGINNING
    assert library.assigned == [[(0, begin), (1, begin)], [(0, 8), (1, begin)]]
    assert library.closed


def test_without_a_refusal_partitions_are_assigned_once(follow):
    """Assigning again discards what was fetched already."""
    seen, library = follow([Message(0, 0)], [], [Message(1, 0)])
    assert seen == [(0, 0), (1, 0)]
    assert len(library.assigned) == 1
