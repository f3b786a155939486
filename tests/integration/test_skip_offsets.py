"""A record batch that can never be read stops every mode, until an operator skips it."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from airflow_eos.engine import RunAttempt
from airflow_eos.exceptions import ConfigurationError, CorruptBatch
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline
from tests.support.markers import wait_for_markers

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
MINUTE = int(DAY.timestamp() * 1000) + 60_000


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    """Ten records, one batch that decompresses to more than is allowed, ten records, one of the next day."""
    filled = Pipeline(embedded_kafka, partitions=1)
    filled.publish([f"a{n}" for n in range(10)], timestamp=MINUTE)
    packed = Producer({**filled.spec.kafka, "compression.type": "gzip"})
    packed.produce(filled.source, value=bytes(200_000), timestamp=MINUTE)
    assert packed.flush(30) == 0
    filled.publish([f"b{n}" for n in range(10)], timestamp=MINUTE)
    filled.publish(["later"], timestamp=MINUTE + 86_400_000)
    return filled


def copy(df):
    return df.select("key", "value")


@pytest.mark.parametrize("mode", ["cursor", "interval", "given"])
def test_a_poison_batch_is_skipped_as_its_error_says(spark, pipeline, mode):
    """Nothing else is skipped: no record beside it, and the cursor continues after it."""
    ranges = {
        "cursor": Cursor(max_records=21),
        "interval": Interval(DAY, DAY + dt.timedelta(hours=1)),
        "given": Explicit((OffsetRange(pipeline.source, 0, 0, 21),)),
    }[mode]
    bounded = {**pipeline.spec.kafka, "eos.max.batch.bytes": 100_000}
    spec = pipeline.changed("r1", kafka=bounded, ranges=ranges)
    with pytest.raises(CorruptBatch) as raised:
        RunAttempt(spark, spec, copy).execute()
    assert pipeline.output() == []
    named = re.search(r"skip_offsets=(\[\[.*?\]\])", str(raised.value))
    assert named is not None, raised.value
    (skip,) = [OffsetRange.from_list(fields) for fields in json.loads(named[1])]
    assert skip == OffsetRange(pipeline.source, 0, 10, 11)

    skipping = pipeline.changed("r1", kafka=bounded, ranges=ranges, skip_offsets=(skip,))
    record = RunAttempt(spark, skipping, copy).execute()
    assert pipeline.output() == sorted([f"a{n}" for n in range(10)] + [f"b{n}" for n in range(10)])
    assert record.records_read == 20
    assert [r.to_list()[2:] for r in record.ranges if r.span] == [[0, 10], [11, 21]]
    place = {"topic": pipeline.source, "partition": 0, "start": 10, "end": 11, "skipped": True}
    assert record.details["accepted_loss"] == [place]
    assert RunAttempt(spark, spec, copy).execute().found, "the skip was for one run"
    replay = Explicit(record.ranges)
    assert (
        RunAttempt(spark, pipeline.changed("replay", kafka=bounded, ranges=replay), copy)
        .execute()
        .records_read
        == 20
    )
    if mode == "cursor":
        following = pipeline.changed("r2", kafka=bounded, ranges=Cursor(), skip_offsets=(skip,))
        assert RunAttempt(spark, following, copy).execute().records_read == 1
        assert "later" in pipeline.output()


def test_a_cursor_moves_past_a_batch_that_is_all_there_is(spark, pipeline):
    """The run is empty, but commits: the group's offset is after the batch."""
    bounded = {**pipeline.spec.kafka, "eos.max.batch.bytes": 100_000}
    skip = (OffsetRange(pipeline.source, 0, 10, 11),)
    counts = []
    for number, most in enumerate((10, 1, 100)):
        spec = pipeline.changed(
            f"r{number}", kafka=bounded, ranges=Cursor(max_records=most), skip_offsets=skip
        )
        counts.append(RunAttempt(spark, spec, copy).execute().records_read)
    assert counts == [10, 0, 11]


def test_offsets_of_another_topic_are_refused(pipeline):
    """A typing error would skip nothing, and fail again."""
    message = f"skip_offsets names other, which is not a source topic; topics are {pipeline.source} "
    with pytest.raises(ConfigurationError, match=message):
        pipeline.changed("r1", skip_offsets=(OffsetRange("other", 0, 1, 2),))


def test_a_poison_batch_behind_transactions_hides_no_boundary(spark, embedded_kafka):
    """Brokers return a marker for the end of the hour, and the log is read from there on."""
    pipeline, hour = Pipeline(embedded_kafka, partitions=1), dt.timedelta(hours=1)
    loader = Producer({**pipeline.spec.kafka, "transactional.id": pipeline.source})
    loader.init_transactions()
    loader.begin_transaction()
    for number in range(5):
        loader.produce(pipeline.source, value=f"a{number}", timestamp=MINUTE)
    loader.commit_transaction()
    wait_for_markers(pipeline.spec.kafka, [TopicPartition(pipeline.source, 0)])
    packed = Producer({**pipeline.spec.kafka, "compression.type": "gzip"})
    packed.produce(pipeline.source, value=bytes(200_000), timestamp=MINUTE + 3_600_000)
    assert packed.flush(30) == 0
    pipeline.publish([f"b{number}" for number in range(3)], timestamp=MINUTE + 3_600_000)
    pipeline.publish(["later"], timestamp=MINUTE + 86_400_000)
    bounded = {**pipeline.spec.kafka, "eos.max.batch.bytes": 100_000}

    first = pipeline.changed("r1", kafka=bounded, ranges=Interval(DAY, DAY + hour))
    assert RunAttempt(spark, first, copy).execute().records_read == 5
    second = pipeline.changed("r2", kafka=bounded, ranges=Interval(DAY + hour, DAY + 2 * hour))
    with pytest.raises(CorruptBatch, match=r"skip_offsets=\[\[.*, 0, 6, 7\]\]"):
        RunAttempt(spark, second, copy).execute()
    skipping = replace(second, skip_offsets=(OffsetRange(pipeline.source, 0, 6, 7),))
    assert RunAttempt(spark, skipping, copy).execute().records_read == 3
    assert pipeline.output() == [f"a{number}" for number in range(5)] + [f"b{number}" for number in range(3)]
