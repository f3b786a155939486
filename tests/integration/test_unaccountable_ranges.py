"""Intervals whose records the log can no longer, or not yet, prove, on a real broker."""

from __future__ import annotations

import datetime as dt
import os
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.engine.lag import interval_waits_for
from airflow_eos.exceptions import IntervalNotReady, IntervalUnaccountable, OffsetsOutOfRange
from airflow_eos.ledger.keys import BOUNDARIES
from airflow_eos.model.ranges import Explicit, Interval, OffsetRange, PartitionInterval, TopicPartition
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operations.preview import preview
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.readers import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Paused, Pipeline
from tests.support.markers import wait_for_markers
from tests.support.patience import wait_until
from tests.support.record_batches import Record, write
from tests.support.topic_settings import COMPACTED_SOON
from tests.support.wire_requests import append, transaction

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
YEAR_2100 = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
ONE_SEGMENT = {"segment.ms": str(2**62)}
"""A jump in time rolls a segment; one that DeleteRecords has emptied hides later ones for some minutes."""
M6, M11 = "2026-01-05T00:06:00.000Z", "2026-01-05T00:11:00.000Z"


def at(minutes):
    return DAY + dt.timedelta(minutes=minutes)


def ms(moment):
    return int(moment.timestamp() * 1000)


def between(start, end, **changes):
    return Interval(at(start), at(end), **changes)


@pytest.fixture
def timed(embedded_kafka):
    """Records at minutes 1, 6, 11 and 16, at offsets 0 to 3 of the only partition."""
    pipeline = Pipeline(embedded_kafka, partitions=1, source_config={**ANY_TIME, **ONE_SEGMENT})
    for minute in (1, 6, 11, 16):
        publish(pipeline, f"m{minute}", at(minute))
    return pipeline


def publish(pipeline, value, moment):
    pipeline.publish([value], timestamp=ms(moment))


def delete_head(pipeline, offset):
    tp = ClientPartition(pipeline.source, 0, offset)
    pipeline.kafka.admin().delete_records([tp])[tp].result()


def pinned(pipeline):
    """Return the moments of the boundaries in the ledger."""
    keys = [r.key.decode() for r in read_topic(pipeline.kafka.client_config(), pipeline.ledger)]
    return [key.rsplit("/", 1)[-1] for key in keys if key.startswith(BOUNDARIES)]


# -- deleted heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "left"), [(1, M6), (2, M11), (4, "no record is found")], ids=["some", "more", "all"]
)
def test_an_interval_over_deleted_records_is_refused_and_nothing_is_pinned(timed, offset, left):
    """The head of the log is deleted: an empty result would prove nothing."""
    delete_head(timed, offset)
    with pytest.raises(IntervalUnaccountable) as refusal:
        timed.run(ranges=between(0, 5))
    text = str(refusal.value)
    assert f"{timed.source}-0: the log starts at offset {offset}, " in text
    assert left in text
    assert "a topic of another name, or accept the loss with accept_deleted=True" in text
    assert pinned(timed) == []
    assert timed.output() == []


def test_a_head_that_is_deleted_while_a_boundary_is_looked_up_is_found_gone(timed, monkeypatch):
    """The log began at 0 at the first request: the answer to the next one belongs to another log."""
    ask, requests = KafkaCluster.offsets_for_time, []

    def late(self, *about, **how):
        if not requests:
            delete_head(timed, 2)
        requests.append(about)
        return ask(self, *about, **how)

    monkeypatch.setattr(KafkaCluster, "offsets_for_time", late)
    with pytest.raises(IntervalUnaccountable):
        timed.run(ranges=between(0, 5))
    assert pinned(timed) == []


def test_an_interval_whose_end_alone_is_untold_is_refused(timed):
    """Its start is pinned and exact; records between it and the first remaining one are deleted."""
    timed.run("i0", ranges=between(0, 5))
    delete_head(timed, 3)
    with pytest.raises(IntervalUnaccountable, match=r"boundary of .* at 2026-01-05T00:10:00.000Z"):
        timed.run("i5", ranges=between(5, 10))
    assert len(pinned(timed)) == 2


def test_deleted_records_before_a_later_interval_that_has_run_are_no_empty_interval(timed):
    """Backwards: bounded by its pinned neighbour, the interval would be empty, without a deleted offset."""
    timed.run("i10", ranges=between(10, 15))
    delete_head(timed, 3)
    with pytest.raises(IntervalUnaccountable):
        timed.run("i5", ranges=between(5, 10))


def test_a_loss_that_is_accepted_is_read_over_and_recorded(timed):
    """The remaining records are read, once; the run's record has the accepted topic, offset and time."""
    delete_head(timed, 1)
    record = timed.run(ranges=between(0, 10, accept_deleted=True))
    assert timed.output() == ["m6"]
    assert [r.to_list() for r in record.ranges] == [[timed.source, 0, 1, 2]]
    loss = {"topic": timed.source, "partition": 0, "log_start": 1, "first_timestamp": ms(at(6))}
    assert record.details["accepted_loss"] == [{**loss, "boundary": "2026-01-05T00:00:00.000Z"}]
    assert [note for note in record.details["notes"] if "accept_deleted" in note]


def test_a_boundary_that_one_run_accepted_is_believed_by_none_that_does_not(timed):
    """The end of an interval with a hole is the start of the next one; after the first proven one all run."""
    delete_head(timed, 2)
    keyed = PartitionInterval("first", between(0, 5, accept_deleted=True))
    assert timed.run("k", ranges=keyed).details["accepted_loss"]
    for start in (0, 5):
        with pytest.raises(IntervalUnaccountable, match="by a run that accepted the loss"):
            timed.run(f"i{start}", ranges=between(start, start + 5))
        with pytest.raises(IntervalUnaccountable):
            preview(timed.changed("p", ranges=between(start, start + 5)))
    assert timed.run("i5", ranges=between(5, 10, accept_deleted=True)).records_read == 0
    with pytest.raises(IntervalUnaccountable):
        timed.run("i10", ranges=between(10, 15))
    assert timed.run("i10", ranges=between(10, 15, accept_deleted=True)).records_read == 1
    clean = timed.run("i15", ranges=between(15, 20))
    assert (clean.records_read, "accepted_loss" in clean.details) == (1, False)
    assert timed.output() == ["m11", "m16"]


def test_what_stood_in_the_log_when_a_boundary_was_fixed_is_older_than_later_moments(timed):
    """A partition has been idle for long: the loss is accepted once, and the next days need no acceptance."""
    delete_head(timed, 4)
    now = dt.datetime.now(dt.timezone.utc)
    accepted = Interval(at(0), now - dt.timedelta(seconds=1), dt.timedelta(0), accept_deleted=True)
    assert timed.run("a", ranges=accepted).details["accepted_loss"]
    first, second = (dt.datetime.now(dt.timezone.utc) for _ in range(2))
    later = Interval(first, second + dt.timedelta(milliseconds=2), dt.timedelta(0))
    assert timed.run("b", ranges=later).records_read == 0


def test_a_deleted_head_before_a_boundary_that_is_proven_stops_nothing(timed):
    """Counter-test: an older record is left, or an earlier boundary is pinned after the deleted head."""
    delete_head(timed, 1)
    assert timed.run("i10", ranges=between(10, 15)).records_read == 1
    delete_head(timed, 3)
    assert timed.run("i15", ranges=between(15, 15.5)).records_read == 0
    assert timed.run("i15.5", ranges=between(15.5, 20)).records_read == 1
    assert timed.output() == ["m11", "m16"]


def test_an_interval_that_is_known_to_be_empty_may_lose_its_surroundings(timed):
    """Counter-test: both neighbours are pinned at one offset, so there is nothing between them."""
    timed.run("i2", ranges=between(2, 3))
    timed.run("i4", ranges=between(4, 5))
    delete_head(timed, 4)
    assert timed.run("i3", ranges=between(3, 3.5)).records_read == 0


def test_a_pinned_interval_that_lost_its_head_is_refused_or_read_from_where_it_starts(timed):
    """The boundaries were exact when they were pinned; the loss came later."""
    timed.run("i0", ranges=between(0, 5))
    timed.run("i15", ranges=between(15, 20))
    keyed = "k", between(0, 15)
    timed.run("all", ranges=PartitionInterval("all", between(5, 15)))
    delete_head(timed, 2)
    with pytest.raises(OffsetsOutOfRange, match="accept_deleted=True"):
        timed.run(ranges=PartitionInterval(*keyed))
    accepting = PartitionInterval("k", between(0, 15, accept_deleted=True))
    record = timed.run(ranges=accepting)
    assert [r.to_list() for r in record.ranges] == [[timed.source, 0, 2, 3]]
    assert record.details["accepted_loss"] == [
        {
            "topic": timed.source,
            "partition": 0,
            "start": 0,
            "end": 2,
            "log_start": 2,
            "first_timestamp": ms(at(11)),
        }
    ]


def test_records_deleted_between_plan_and_read_are_planned_around_where_the_run_accepts_it(timed):
    """The plan is as old as its log bounds: the same attempt plans what is left, and records the loss."""
    paused = Paused(timed, State.PLANNED, "i0", ranges=between(0, 15, accept_deleted=True))
    delete_head(timed, 1)
    paused.resume()
    assert paused.error is None
    assert [r.to_list() for r in paused.record.ranges] == [[timed.source, 0, 1, 3]]
    assert [(loss["start"], loss["end"]) for loss in paused.record.details["accepted_loss"]] == [(0, 1)]


def test_records_deleted_between_plan_and_read_are_refused_by_the_rule_of_the_mode(timed):
    """An interval has no cursor that could be moved."""
    paused = Paused(timed, State.PLANNED, "i0", ranges=between(0, 15))
    delete_head(timed, 1)
    paused.resume()
    with pytest.raises(OffsetsOutOfRange, match=r"records 0 to 0 were deleted.*accept_deleted=True"):
        raise paused.error
    assert timed.output() == []


def test_given_ranges_that_lost_their_head_say_how_to_go_on(timed):
    """A user who gives offsets accepts a loss by giving others."""
    delete_head(timed, 2)
    with pytest.raises(OffsetsOutOfRange, match="give a range that starts at 2"):
        timed.run(ranges=Explicit((OffsetRange(timed.source, 0, 0, 3),)))


def supersede(pipeline):
    """Let the only record of a segment be compacted away: the header of its producer's last batch stays."""

    def put(key, value, minute):
        producer = Producer({**pipeline.kafka.client_config(), "enable.idempotence": True, "linger.ms": 0})
        producer.produce(pipeline.source, key=key, value=value, partition=0, timestamp=ms(at(minute)))
        assert producer.flush(30) == 0

    pad = os.urandom(700_000)  # one per segment; compaction would merge smaller ones
    put("first", pad, 1)
    put("key", "old", 9)
    put("key", "m11", 11)
    put("second", pad, 12)
    put("last", "m20", 20)
    log = pipeline.kafka.brokers[0].data_folder / f"{pipeline.source}-0" / f"{0:020}.log"
    wait_until(lambda: len(pad) < log.stat().st_size and b"old" not in log.read_bytes()[len(pad) :])


@pytest.mark.parametrize("emptied", rest_in_chaos(3, ["in part", "whole", "undated", "compacted"]))
def test_a_segment_without_records_hides_no_later_one(embedded_kafka, emptied):
    """For a timestamp, a broker searches only the first segment that is new enough; that one is empty."""
    settings = {**COMPACTED_SOON, "segment.bytes": str(1 << 20)} if emptied == "compacted" else {}
    segment_ms = "1" if emptied == "undated" else "60000"
    pipeline = Pipeline(
        embedded_kafka, partitions=1, source_config={**settings, "segment.ms": segment_ms, **ANY_TIME}
    )
    if emptied == "whole":
        for minute in (1, 6, 11):
            publish(pipeline, f"m{minute}", at(minute))
        assert pipeline.run("i5", ranges=between(5, 10)).records_read == 1
        delete_head(pipeline, 2)
    elif emptied == "in part":
        for minute in (9, 5, 11):
            publish(pipeline, f"m{minute}", at(minute))
        delete_head(pipeline, 1)
    elif emptied == "undated":
        publish_undated(pipeline, -1)
        publish(pipeline, "m11", at(11))
    else:
        supersede(pipeline)
    assert pipeline.run("i12", ranges=between(10 if emptied == "whole" else 8, 12)).records_read == 1
    assert "m11" in pipeline.output()


# -- records without a timestamp ----------------------------------------------------------------------------

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
YEAR_1969 = -31_536_000_000


def publish_undated(pipeline, *timestamps):
    """Write records without a timestamp (-1), as some clients do, or with one before 1970; return the values.

    Byte by byte: librdkafka replaces such timestamps by the current time.
    """
    tp = TopicPartition(pipeline.source, 0)
    values = [f"undated{number}" for number in range(len(timestamps))]
    with BrokerConnections(ClientConfig.of(pipeline.kafka.client_config())) as connections:
        for value, timestamp in zip(values, timestamps, strict=True):
            append(connections, tp, write([Record(0, timestamp, value.encode(), value.encode())]))
    return values


@pytest.fixture
def undated(embedded_kafka):
    """Two records without a timestamp and one of 1969, at offsets 0 to 2 of the only partition."""
    pipeline = Pipeline(embedded_kafka, partitions=1, source_config={**ANY_TIME, **ONE_SEGMENT})
    publish_undated(pipeline, -1, -1, YEAR_1969)
    return pipeline


@pytest.mark.parametrize("head", [0, 1], ids=["whole", "deleted head"])
def test_records_without_a_timestamp_are_unaccountable_or_read_once(undated, head):
    """No moment is before them: every interval over them was once empty, and the run green."""
    if head:
        delete_head(undated, head)
    with pytest.raises(IntervalUnaccountable) as refusal:
        undated.run(ranges=between(0, 5))
    text = str(refusal.value)
    assert f"{undated.source}-0: none of the records from offset {head} on has a timestamp" in text
    assert "accept_deleted=True" in text
    assert (pinned(undated), undated.output()) == ([], [])
    accepted = undated.run("i0", ranges=between(0, 5, accept_deleted=True))
    assert [r.to_list() for r in accepted.ranges] == [[undated.source, 0, head, 3]]
    assert accepted.details["accepted_loss"]
    assert "none of the records from offset" in "\n".join(accepted.details["notes"])
    # One interval reads each; the next ones need the acceptance until a record has a timestamp.
    publish_undated(undated, -1)
    with pytest.raises(IntervalUnaccountable):
        undated.run("i5", ranges=between(5, 10))
    for start in (5, -5):
        undated.run(f"i{start}", ranges=between(start, start + 5, accept_deleted=True))
    publish(undated, "m16", at(16))
    # A deleted head proves nothing about 00:15; what is left proves the boundary after it.
    later = between(15, 20, accept_deleted=bool(head))
    assert undated.run("i15", ranges=later).records_read == 1
    assert undated.run("i20", ranges=between(21, 25)).records_read == 0
    assert undated.output() == sorted(["m16", "undated0", *["undated0", "undated1", "undated2"][head:]])


def test_a_record_without_a_timestamp_beside_others_is_read_where_it_stands(timed):
    """Counter-test: it is late for every moment, and belongs to the interval whose offsets include it."""
    publish_undated(timed, -1, YEAR_1969)
    publish(timed, "m21", at(21))
    reads = {
        start: timed.run(f"i{start}", ranges=between(start, start + 5)).records_read for start in (20, 15)
    }
    assert reads == {20: 1, 15: 3}


def test_a_partition_that_holds_markers_alone_is_idle(embedded_kafka):
    """Counter-test: an aborted transaction leaves a marker, whose timestamp is not that of a record."""
    pipeline = Pipeline(embedded_kafka, partitions=1)
    tp = TopicPartition(pipeline.source, 0)
    with BrokerConnections(ClientConfig.of(pipeline.kafka.client_config())) as connections:
        transaction(connections, tp, ["aborted"], commit=False)
    now = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)
    wait_until(lambda: dt.datetime.now(dt.timezone.utc) > now)
    assert pipeline.run(ranges=Interval(at(0), now, dt.timedelta(0))).records_read == 0


@pytest.mark.parametrize("start", [EPOCH - dt.timedelta(milliseconds=n) for n in (1, 2, 3, 4, 6, 10**10)])
def test_a_moment_before_1970_is_no_special_question(timed, start):
    """Brokers take -1 to -6 for the end, the beginning and others, and refuse lower numbers."""
    assert timed.run(ranges=Interval(start, at(7))).records_read == 2
    assert timed.output() == ["m1", "m6"]


def test_records_of_before_1970_are_in_an_interval_of_before_1970(embedded_kafka):
    """So are records without a timestamp before the first one with a known time."""
    pipeline = Pipeline(embedded_kafka, partitions=1, source_config={**ANY_TIME, **ONE_SEGMENT})
    undated = publish_undated(pipeline, YEAR_1969, -1)
    publish(pipeline, "m1", at(1))
    assert pipeline.run("later", ranges=Interval(EPOCH, at(5))).records_read == 1
    before = Interval(EPOCH - dt.timedelta(days=366), EPOCH)
    assert pipeline.run("before", ranges=before).records_read == 2
    assert pipeline.output() == ["m1", *undated]


# -- sensors ------------------------------------------------------------------------------------------------


def test_a_sensor_says_what_the_run_would_say(timed):
    """It uses the same function: deleted heads, pinned and accepted boundaries; and it pins nothing."""
    spec = timed.spec

    def over(start, end, ledger=spec.ledger, **changes):
        interval = between(start, end, **changes)
        return not interval_waits_for(spec.kafka, spec.source_topics, interval, ledger=ledger)

    timed.run("i5", ranges=between(5, 10))
    delete_head(timed, 2)
    with pytest.raises(IntervalUnaccountable):
        over(0, 5)
    with pytest.raises(IntervalUnaccountable):
        over(10, 15, ledger=LedgerSettings("nowhere"))  # only a pinned boundary proves it
    assert over(10, 15)
    assert over(0, 5, accept_deleted=True)
    publish(timed, "far", YEAR_2100)
    with pytest.raises(IntervalUnaccountable, match="far future"):
        over(15, 20)
    assert len(pinned(timed)) == 2


# -- timestamps of the far future ---------------------------------------------------------------------------


def test_a_record_of_the_far_future_is_refused_and_nothing_is_pinned(timed):
    """It is the first record at every later moment: each later interval would end before it."""
    publish(timed, "far", YEAR_2100)
    publish(timed, "m21", at(21))
    with pytest.raises(IntervalUnaccountable) as refusal:
        timed.run(ranges=between(15, 20))
    text = str(refusal.value)
    assert f"{timed.source}-0 offset 4: 2100-01-01T00:00:00.000Z" in text
    assert "by this host's clock. If that clock is wrong, or a broker's with" in text
    assert "message.timestamp.after.max.ms" in text
    assert pinned(timed) == ["2026-01-05T00:15:00.000Z"]  # its start is before an ordinary record
    # The remedies: read what is before it by offsets, then without it.
    timed.run("before", ranges=Explicit((OffsetRange(timed.source, 0, 3, 4),)))
    delete_head(timed, 5)
    accepted = timed.run("after", ranges=between(15, 25, accept_deleted=True))
    assert accepted.details["accepted_loss"]
    assert timed.output() == ["m16", "m21"]
    publish(timed, "m26", at(26))
    assert timed.run("next", ranges=between(25, 30)).records_read == 1


def test_an_aborted_record_of_the_far_future_stops_no_interval(timed):
    """No reader shows it. While its transaction is open, the interval is not ready."""
    producer = Producer({**timed.kafka.client_config(), "transactional.id": timed.source, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(timed.source, value="far", timestamp=ms(YEAR_2100))
        assert producer.flush(30) == 0
    with pytest.raises(IntervalNotReady, match=r"far future: .*-0 offset 4: 2100.* transaction that is open"):
        timed.run(ranges=between(15, 20))
    producer.abort_transaction(30)
    wait_for_markers(timed.kafka.client_config(), [TopicPartition(timed.source, 0)])
    publish(timed, "m21", at(21))
    assert timed.run(ranges=between(15, 20), try_number=2).records_read == 1
    assert timed.output() == ["m16"]
    publish(timed, "m26", at(26))
    assert timed.run("next", ranges=between(20, 25)).records_read == 1


def test_timestamps_that_run_ahead_a_little_are_ordinary(timed):
    """Counter-test: clocks differ; brokers allow an hour by default."""
    now = dt.datetime.now(dt.timezone.utc)
    publish(timed, "ahead", now + dt.timedelta(minutes=50))
    assert timed.run(ranges=Interval(at(15), now)).records_read == 1


def test_an_interval_that_stays_empty_while_its_topic_grows_is_noted(timed):
    """A producer's clock is ahead by under an hour: records of others are in no interval of their time."""
    start = dt.datetime.now(dt.timezone.utc)
    publish(timed, "ahead", start + dt.timedelta(minutes=50))
    timed.run("before", ranges=Interval(at(15), start))
    publish(timed, "on-time", dt.datetime.now(dt.timezone.utc))
    time.sleep(0.01)
    end = dt.datetime.now(dt.timezone.utc)
    record = timed.run("empty", ranges=Interval(start, end))
    assert record.records_read == 0
    assert "though the topic grew by 1 offsets" in "\n".join(record.details["notes"])


# -- what retention deletes later --------------------------------------------------------------------------

WEEK = {"retention.ms": "604800000"}


@pytest.mark.parametrize("ranges", [None, between(0, 5), "explicit"], ids=["cursor", "interval", "explicit"])
def test_output_that_the_sink_will_delete_at_once_is_noted(embedded_kafka, ranges):
    """Timestamps are passed on: the record lists the offsets that are older than the sink's retention."""
    pipeline = Pipeline(embedded_kafka, partitions=1, sink_config=WEEK)
    publish(pipeline, "old", at(1))
    publish(pipeline, "new", dt.datetime.now(dt.timezone.utc))
    if ranges == "explicit":
        ranges = Explicit((OffsetRange(pipeline.source, 0, 0, 2),))
    record = pipeline.run(**({} if ranges is None else {"ranges": ranges}))
    (note,) = record.details["notes"]
    assert f"{pipeline.sink} keeps records for 7 days (retention.ms)" in note
    assert f": {pipeline.source}-0 [0, 1). " in note


@pytest.mark.chaos
def test_what_retention_takes_before_it_is_read_is_refused():
    """As after DeleteRecords, but by the broker's own retention: no try succeeds over nothing."""
    often = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
    with EmbeddedKafka(broker_config=often) as kafka:
        unread = Pipeline(kafka, partitions=1, source_config=WEEK)
        publish(unread, "m1", at(1))
        publish(unread, "m6", at(6))
        wait_until(lambda: log_start(unread, unread.source) == 2)
        for attempt in ("first", "again"):
            with pytest.raises(IntervalUnaccountable, match="the log starts at offset 2, no record"):
                unread.run(attempt, ranges=between(0, 5))
        assert (pinned(unread), unread.output()) == ([], [])


def log_start(pipeline, topic):
    (future,) = (
        pipeline.kafka.admin().list_offsets({ClientPartition(topic, 0): OffsetSpec.earliest()}).values()
    )
    return future.result(30).offset


def test_output_that_stays_is_not_noted(embedded_kafka):
    """Counter-test: recent records, a sink with LogAppendTime, one without retention."""
    stamped = {**WEEK, "message.timestamp.type": "LogAppendTime"}
    for config in ({"retention.ms": "-1"}, {"retention.ms": str(2**63 - 1)}, stamped):
        pipeline = Pipeline(embedded_kafka, partitions=1, sink_config=config)
        publish(pipeline, "old", at(1))
        assert pipeline.run().details["notes"] == []
    pipeline = Pipeline(embedded_kafka, partitions=1, sink_config=WEEK)
    publish(pipeline, "new", dt.datetime.now(dt.timezone.utc))
    assert pipeline.run().details["notes"] == []


def test_a_source_that_keeps_less_than_the_age_of_its_interval_is_noted(embedded_kafka):
    """This time it is read early enough."""
    pipeline = Pipeline(
        embedded_kafka,
        partitions=1,
        source_config={"retention.ms": "3600000"},
        sink_config={"retention.ms": "-1"},
    )
    now = dt.datetime.now(dt.timezone.utc)
    publish(pipeline, "young", now)
    day = Interval(now - dt.timedelta(days=1), now, dt.timedelta(0))
    (note,) = pipeline.run(ranges=day).details["notes"]
    assert f"{pipeline.source} keeps records for 1 hour" in note


def test_timestamps_ahead_of_the_clock_are_no_proof_of_their_age(timed):
    """Records that a log had when a boundary was pinned may be newer: their producers' clocks were ahead."""
    now = dt.datetime.now(dt.timezone.utc)
    timed.run("before", ranges=Interval(at(0), now, dt.timedelta(0)))
    publish(timed, "ahead", now + dt.timedelta(seconds=3))
    timed.run("pins", ranges=Interval(at(16.5), now + dt.timedelta(milliseconds=1), dt.timedelta(0)))
    delete_head(timed, 5)
    end = now + dt.timedelta(seconds=4)
    wait_until(lambda: dt.datetime.now(dt.timezone.utc) > end)
    with pytest.raises(IntervalUnaccountable, match="the log starts at offset 5"):
        timed.run("lost", ranges=Interval(now + dt.timedelta(seconds=2), end, dt.timedelta(0)))
