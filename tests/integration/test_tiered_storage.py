"""Topics whose old segments are in remote storage only, on a real broker (KIP-405)."""

from __future__ import annotations

import datetime as dt

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from airflow_eos.exceptions import IntervalUnaccountable
from airflow_eos.model.ranges import Interval, TopicPartition
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline
from tests.support.tiered_storage import TIERED, tiered_storage, wait_until_remote
from tests.support.wire_requests import read, transaction, values_of

pytestmark = pytest.mark.chaos
DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
LARGE = 400_000
"""Bytes of a record: two fill a segment."""


def at(minutes):
    return DAY + dt.timedelta(minutes=minutes)


def between(start, end):
    return Interval(at(start), at(end), dt.timedelta(0))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with EmbeddedKafka(broker_config=tiered_storage(tmp_path_factory.mktemp("remote"))) as running:
        yield running


@pytest.fixture
def pipeline(kafka):
    return Pipeline(kafka, partitions=1, source_config=TIERED)


def publish(pipeline, minute, *values):
    pipeline.publish(values, timestamp=int(at(minute).timestamp() * 1000))


def delete_head(pipeline, offset):
    head = ClientPartition(pipeline.source, 0, offset)
    pipeline.kafka.admin().delete_records([head])[head].result()


def test_timestamps_in_remote_storage_are_no_proof_of_their_age(pipeline):
    """Brokers compare those of local segments only: the highest one may be in a remote segment."""
    publish(pipeline, 100, *("r" * LARGE for _ in range(4)))
    publish(pipeline, 1, *("l" * LARGE for _ in range(3)))
    with BrokerConnections(pipeline.spec.kafka) as connections:
        wait_until_remote(connections, TopicPartition(pipeline.source, 0), 4)
    assert pipeline.run("pins", ranges=between(0, 50)).records_written == 0
    delete_head(pipeline, 7)
    with pytest.raises(IntervalUnaccountable, match="the log starts at offset 7"):
        pipeline.run("lost", ranges=between(60, 120))


def test_remote_segments_are_read_exactly(pipeline):
    """Committed records only, from any offset; aborted transactions lie in remote segments, too."""
    source = TopicPartition(pipeline.source, 0)
    with BrokerConnections(pipeline.spec.kafka) as connections:
        for number in range(8):
            text = f"{number}" * (LARGE // 2)
            transaction(connections, source, [text, text], commit=number % 3 != 1)
        wait_until_remote(connections, source, 15)
        everything = read(connections, source)
        for start in range(0, 24, 5):
            part = [pair for pair in everything if start <= pair[0] < 23]
            assert read(connections, source, start, 23) == part
    assert [value[0] for value in values_of(everything)] == list("0022335566")
    assert pipeline.run().records_written == 10
    assert pipeline.output() == sorted(values_of(everything))
