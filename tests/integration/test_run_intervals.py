"""Runs over data intervals, partition keys and given ranges, on a real broker."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
import zoneinfo
from collections import Counter

import pendulum
import pytest
from airflow.sdk import CronPartitionTimetable, DeltaDataIntervalTimetable
from airflow.timetables.interval import DeltaDataIntervalTimetable as ScheduledDeltas
from airflow.timetables.trigger import CronPartitionTimetable as ScheduledPartitions
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    CursorMoved,
    DifferentWork,
    GroupOwned,
    IntervalNotReady,
    OffsetsOutOfRange,
    UnknownTopic,
)
from airflow_eos.model.ranges import (
    Cursor,
    Explicit,
    Interval,
    OffsetRange,
    PartitionInterval,
    TopicPartition,
)
from airflow_eos.model.spec import Deployment
from airflow_eos.run.states import State
from airflow_eos.ui.history import RunHistory
from tests.support.airflow_partitions import partition_of, ranges_of
from tests.support.local_runs import Paused, Pipeline
from tests.support.markers import wait_for_markers

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)


def at(minutes: float) -> dt.datetime:
    return DAY + dt.timedelta(minutes=minutes)


def ms(minutes: float) -> int:
    return int(at(minutes).timestamp() * 1000)


def between(start: float, end: float, **changes) -> Interval:
    return Interval(at(start), at(end), **changes)


@pytest.fixture
def pipeline(embedded_kafka):
    return Pipeline(embedded_kafka)


@pytest.fixture
def timed(pipeline):
    """Records at minutes 1, 6, 11 and 16 in partition 0; partition 1 has one at minute 2 only."""
    for minute in (1, 6, 11, 16):
        pipeline.publish([f"p0m{minute}"], partition=0, timestamp=ms(minute))
    pipeline.publish(["p1m2"], partition=1, timestamp=ms(2))
    return pipeline


def test_intervals_tile_the_log_backwards_too(timed):
    """Whatever order the intervals run in, each record is in exactly one of them."""
    reads = {
        start: timed.run(f"i{start}", ranges=between(start, start + 5)).records_read
        for start in (15, 5, 0, 10)
    }
    assert reads == {0: 2, 5: 1, 10: 1, 15: 1}
    assert timed.output() == sorted(["p0m1", "p0m6", "p0m11", "p0m16", "p1m2"])


def test_an_interval_is_committed_once_whatever_its_run_is_called(timed):
    """A backfill has a new run id for the same interval: the ledger has its record."""
    timed.run("scheduled__1", ranges=between(0, 5))
    again = timed.run("backfill__1", ranges=between(0, 5))
    assert again.found
    assert again.run_id == "scheduled__1"
    assert len(timed.output()) == 2


def test_a_late_record_belongs_to_the_interval_whose_offsets_hold_it(timed):
    """Boundaries are pinned: a late record is in the next interval that is read, exactly once."""
    timed.run("a", ranges=between(0, 5))
    timed.publish(["late-m3"], partition=1, timestamp=ms(3))
    timed.publish(["late-m4"], partition=0, timestamp=ms(4))
    for start in (5, 10, 15, 20):
        timed.run(f"i{start}", ranges=between(start, start + 5))
    timed.run("again", ranges=between(0, 5))
    assert timed.output() == sorted(["p0m1", "p0m6", "p0m11", "p0m16", "p1m2", "late-m3", "late-m4"])


def test_intervals_run_in_parallel_with_late_records_in_between(timed):
    """Two adjacent intervals at once, one paused before its commit while late records arrive."""
    later = Paused(timed, State.SEALED, "later", ranges=between(5, 10))
    timed.publish(["late-m1"], partition=1, timestamp=ms(1))
    timed.run("earlier", ranges=between(0, 5))
    later.resume()
    assert later.error is None
    for start in (10, 15):
        timed.run(f"i{start}", ranges=between(start, start + 5))
    assert timed.output() == sorted(["p0m1", "p0m6", "p0m11", "p0m16", "p1m2", "late-m1"])


def test_many_runs_that_pin_the_same_boundaries_agree(timed):
    """Eight attempts at once: one of them pins their boundaries."""
    records, errors = {}, []

    def body(start):
        try:
            records[start] = timed.run(f"i{start}", ranges=between(start, start + 5))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(start,)) for start in (0, 5, 10, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert sum(r.records_read for r in records.values()) == 5
    assert len(timed.output()) == 5


@pytest.mark.chaos
def test_boundaries_that_a_catch_up_fixes_at_once_are_all_fixed(pipeline):
    """Each fences the topic's id: they back off for longer each time, until one has time to write."""
    pipeline.run()
    errors = []

    def slowly(_near, _whole):
        time.sleep(0.1)  # as over a slow network
        return "{}"

    def body(number):
        try:
            with ControlPlane(pipeline.spec) as control:
                control.verify_ledger()
                control.pins.pin("test.boundary.t", f"boundary:t/{number}", "t", slowly)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


def test_an_interval_that_ends_in_the_future_is_refused(timed):
    """It is not over: its records are still being written. The last retry of one that has begun waits."""
    now, hour = dt.datetime.now(dt.timezone.utc), dt.timedelta(hours=1)
    for start, until in ((now - hour, now + 3 * hour), (now + hour, None)):
        interval = Interval(start, now + 2 * hour, allowed_lateness=hour)
        with pytest.raises(IntervalNotReady, match=r"in the future: it is \S+ by this host") as refused:
            timed.run(ranges=interval)
        assert refused.value.until == until


def test_an_idle_partition_is_waited_for_until_allowed_lateness_has_passed(pipeline):
    """There is no record at or after the boundary yet: the error tells until when one may arrive."""
    now = dt.datetime.now(dt.timezone.utc)
    recent = (now - dt.timedelta(minutes=2), now - dt.timedelta(seconds=1))
    pipeline.publish(["a"], timestamp=int((now - dt.timedelta(minutes=1)).timestamp() * 1000))
    with pytest.raises(IntervalNotReady, match="allowed_lateness"):
        pipeline.run(ranges=Interval(*recent, allowed_lateness=dt.timedelta(minutes=10)))
    assert pipeline.run(ranges=Interval(*recent, allowed_lateness=dt.timedelta(0))).records_read == 1


def upstream(pipeline):
    """Another client's transactional producer."""
    producer = Producer({**pipeline.kafka.client_config(), "transactional.id": f"upstream-{uuid.uuid4()}"})
    producer.init_transactions(30)
    return producer


def open_at_minute_3(pipeline):
    """A producer whose transaction is open, with a record of minute 3 in partition 1."""
    producer = upstream(pipeline)
    producer.begin_transaction()
    producer.produce(pipeline.source, value="open-m3", partition=1, timestamp=ms(3))
    producer.flush(30)
    return producer


def test_an_open_transaction_before_the_boundary_is_waited_for(timed):
    """Records of an open transaction are undecided: the interval is not ready, and complete later."""
    producer = open_at_minute_3(timed)
    timed.publish(["p1m7"], partition=1, timestamp=ms(7))
    with pytest.raises(IntervalNotReady, match="waits behind a transaction that is open since"):
        timed.run(ranges=between(0, 5))
    producer.commit_transaction(30)
    wait_for_markers(timed.kafka.client_config(), [TopicPartition(timed.source, 1)])
    timed.run(ranges=between(0, 5), try_number=2)
    assert timed.output() == ["open-m3", "p0m1", "p1m2"]


def test_older_records_of_an_open_transaction_belong_to_the_interval_behind_an_idle_boundary(timed):
    """No record reached the boundary's time, so it is at the last stable offset: later records are late."""
    producer = open_at_minute_3(timed)
    assert timed.run("i0", ranges=between(0, 5)).records_read == 2
    producer.commit_transaction(30)
    wait_for_markers(timed.kafka.client_config(), [TopicPartition(timed.source, 1)])
    assert timed.run("i5", ranges=between(5, 10)).records_read == 2
    assert timed.output() == ["open-m3", "p0m1", "p0m6", "p1m2"]


def test_markers_of_transactions_are_no_records_of_their_time(pipeline):
    """A transactional producer loads history: markers have the brokers' time, and belong to no interval."""
    producer = upstream(pipeline)
    for minutes in ((1, 6), (11, 16)):
        producer.begin_transaction()
        for minute in minutes:
            producer.produce(pipeline.source, value=f"m{minute}", partition=0, timestamp=ms(minute))
        producer.commit_transaction(30)
    wait_for_markers(pipeline.kafka.client_config(), [TopicPartition(pipeline.source, 0)])
    reads = {
        start: pipeline.run(f"i{start}", ranges=between(start, start + 5)).records_read
        for start in (0, 5, 10, 15)
    }
    assert reads == {0: 1, 5: 1, 10: 1, 15: 1}
    assert pipeline.output() == ["m1", "m11", "m16", "m6"]


def test_a_partition_key_names_the_work(timed):
    """One key is committed once, and does not collide with the interval of the same time."""
    keyed = PartitionInterval("2026-01-05", between(0, 5))
    first = timed.run("asset-1", ranges=keyed)
    assert (first.mode, first.records_read) == ("partition", 2)
    assert timed.run("asset-2", ranges=keyed).found
    assert not timed.run("plain", ranges=between(0, 5)).found


@pytest.mark.parametrize("schedule", ["@daily", None], ids=["ticks", "duration"])
@pytest.mark.parametrize("change", ["2026-03-29", "2025-10-26"], ids=["23 hours", "25 hours"])
def test_each_record_is_in_one_partition_of_a_local_day(embedded_kafka, schedule, change):
    """Keys and dates come from the scheduler; a record's day is that of its timestamp in the time zone."""
    zone, minute = "Europe/Berlin", dt.timedelta(minutes=1)
    berlin = zoneinfo.ZoneInfo(zone)
    noon = dt.datetime.fromisoformat(f"{change}T12:00:00Z")
    ticks = ScheduledPartitions("@daily", timezone=zone).iter_partition_dagrun_infos(
        earliest=noon - dt.timedelta(days=1.5), latest=noon + dt.timedelta(days=1)
    )
    dates = {info.partition_key: info.partition_date for info in ticks}
    around_midnight = [date + dt.timedelta(milliseconds=by) for date in dates.values() for by in (-1, 0)]
    around_change = [noon - dt.timedelta(hours=11) + number * 30 * minute for number in range(-2, 3)]
    moments = sorted({*around_midnight[1:], *around_change})
    pipeline = Pipeline(embedded_kafka, partitions=1)
    for moment in moments:
        pipeline.publish([moment.isoformat()], timestamp=round(moment.timestamp() * 1000))
    cron = schedule and CronPartitionTimetable(schedule, timezone=zone)
    reads = {}
    for key, date in dates.items():
        ranges = partition_of(cron, key, date, dt.timedelta(days=1), timezone=zone)
        reads[key[:10]] = pipeline.run(key, ranges=ranges).records_read
    days = [str(moment.astimezone(berlin).date()) for moment in moments]
    assert len(reads) == 3
    assert reads == {day: days.count(day) for day in sorted(days)}
    assert pipeline.output() == [moment.isoformat() for moment in moments]


def test_a_delta_schedule_that_is_triggered_reads_what_its_scheduled_runs_read(timed, caplog):
    """Airflow gives it the last period before now: a warning, and the page names the offsets read twice."""
    delta = dt.timedelta(minutes=5)
    by_hand = ScheduledDeltas(delta).infer_manual_data_interval(run_after=pendulum.instance(at(12)))
    for run_id, start, end in [
        ("scheduled__5", at(5), at(10)),
        ("scheduled__10", at(10), at(15)),
        ("manual__12", by_hand.start, by_hand.end),
    ]:
        ends = {"data_interval_start": start, "data_interval_end": end}
        kind, schedule = run_id.partition("_")[0], DeltaDataIntervalTimetable(delta)
        ranges = ranges_of(schedule, run_id=run_id, run_type=kind, **ends)
        timed.run(run_id, ranges=ranges)
    assert Counter(timed.output()) == {"p0m6": 1, "p0m11": 2}
    (warning,) = (record.getMessage() for record in caplog.records if "are read twice" in record.getMessage())
    assert "'manual__12' was triggered and reads [2026-01-05T00:07:00" in warning
    spec = timed.spec
    with RunHistory(Deployment(spec.kafka, spec.ledger, spec.prefix)) as history:
        history.refresh()
        (pipeline,) = history.pipelines.values()
        assert f"offset 2 of {timed.source}-0 was read by 2 runs" in history.coverage(pipeline).sentence


def test_interval_runs_do_not_touch_the_cursor(timed):
    """Cursor and intervals of one pipeline side by side: only the cursor commits the group's offsets."""
    assert timed.run("c1").records_read == 5
    timed.run("i", ranges=between(0, 5))
    timed.publish(["new"])
    assert timed.run("c2").records_read == 1


def test_a_mapped_interval_of_an_added_partition_is_empty_before_its_boundaries(timed):
    """The boundary was pinned without the partition: its records are late, and in the next interval."""
    timed.run("i0", ranges=between(0, 5), source_partition=0)
    timed.add_partitions(timed.source, 3)
    timed.publish(["p2m1"], partition=2, timestamp=ms(1))
    added = timed.run("i0", ranges=between(0, 5), source_partition=2)
    assert [r.to_list() for r in added.ranges] == [[timed.source, 2, 0, 0]]
    assert timed.run("i5", ranges=between(5, 10), source_partition=2).records_read == 1
    assert timed.output() == ["p0m1", "p2m1"]


def test_partitions_of_a_task_that_is_no_longer_mapped_are_not_written_again(timed):
    """The task of partition 0 failed, that of 1 is committed; then the author removes the mapping."""
    timed.run("i0", ranges=between(0, 5), source_partition=1)
    with pytest.raises(DifferentWork, match="no longer mapped"):
        timed.run("i0", ranges=between(0, 5))
    assert timed.output() == ["p1m2"]
    timed.run("i0", ranges=between(0, 5), source_partition=0)
    assert timed.output() == ["p0m1", "p1m2"]


def test_a_partition_that_the_source_does_not_have_is_refused_by_the_parameters_name(timed):
    """By every mode: read as one without records, an interval would be done before they come."""
    for ranges in (between(0, 5), Cursor()):
        with pytest.raises(UnknownTopic, match="has 2 partitions, source_partition is 2"):
            timed.run("i0", ranges=ranges, source_partition=2)


def test_an_interval_is_not_read_without_partitions_that_its_boundaries_know(timed, monkeypatch):
    """Stale metadata lists fewer partitions: no interval would have the records of the others."""
    with Link(timed.kafka.client_config()) as link:
        cluster = KafkaCluster(link)
        behind = cluster.describe_topics([timed.source])
    describe = KafkaCluster.describe_topics
    timed.add_partitions(timed.source, 3)
    timed.publish(["p2m1"], partition=2, timestamp=ms(1))
    timed.publish(["p2m6"], partition=2, timestamp=ms(6))
    timed.run("i0", ranges=between(0, 5))

    def late(self, *topics, **optional):
        return {**describe(self, *topics, **optional), **behind}

    def read_behind():
        with monkeypatch.context() as patched:
            patched.setattr(KafkaCluster, "describe_topics", late)
            with pytest.raises(UnknownTopic, match=r"has 2 partitions by the broker .*, and had 3"):
                timed.run("i5", ranges=between(5, 10))

    read_behind()  # fixes no boundary: without the partition, a later interval would read it from 0 again
    timed.run("i10", ranges=between(10, 15))
    read_behind()
    assert timed.run("i5", ranges=between(5, 10)).records_read == 2
    assert len(timed.output()) == len(set(timed.output())) == 6


def test_a_group_named_as_that_of_a_groups_intervals_is_refused_by_its_name(timed):
    """Runs without a cursor commit to <group>.runs, with the same ledger."""
    timed.run("i", ranges=between(0, 5))
    group = timed.spec.group_id
    with pytest.raises(GroupOwned, match=f"runs of group '{group}' that move no cursor"):
        timed.run("c", group_id=f"{group}.runs", pipeline="other")


def test_given_ranges_are_read_exactly(timed):
    """Their offsets are read; the group's offsets do not move."""
    record = timed.run(ranges=Explicit((OffsetRange(timed.source, 0, 1, 3),)))
    assert timed.output() == ["p0m11", "p0m6"]
    assert (record.mode, record.records_read) == ("explicit", 2)
    assert timed.run("c").records_read == 5


def test_given_ranges_advance_the_cursor_only_from_where_it_stands(timed):
    """With advance=True they move the cursor, by the cursor's rules."""
    timed.run("r1", ranges=Explicit((OffsetRange(timed.source, 0, 0, 2),), advance=True))
    with pytest.raises(CursorMoved, match="starts at 0, the ledger's cursor is 2"):
        timed.run("r2", ranges=Explicit((OffsetRange(timed.source, 0, 0, 2),), advance=True))
    assert timed.run("r3").records_read == 3


def test_given_ranges_that_advance_read_an_added_partition_from_its_beginning(timed):
    """A partition that the cursor does not know starts at 0, as for a cursor run."""
    timed.run("r1")
    timed.add_partitions(timed.source, 3)
    timed.publish(["p2a", "p2b"], partition=2)
    with pytest.raises(CursorMoved, match="starts at 1, the ledger's cursor is 0"):
        timed.run("r2", ranges=Explicit((OffsetRange(timed.source, 2, 1, 2),), advance=True))
    timed.run("r3", ranges=Explicit((OffsetRange(timed.source, 2, 0, 1),), advance=True))
    assert timed.run("r4").records_read == 1


@pytest.mark.parametrize(
    ("end", "partition", "error", "message"),
    [(99, 0, OffsetsOutOfRange, "ends at 99, the log at 4:"), (1, 9, UnknownTopic, "do not have")],
)
def test_given_ranges_that_do_not_exist_are_refused(timed, end, partition, error, message):
    """Beyond the log, or in a partition the topic does not have."""
    with pytest.raises(error, match=message):
        timed.run(ranges=Explicit((OffsetRange(timed.source, partition, 0, end),)))


def test_deleted_records_of_an_interval_are_a_loss(timed):
    """Retention deleted the head of a pinned interval: an error, not a smaller result."""
    timed.run("i", ranges=between(5, 10))
    tp = ClientPartition(timed.source, 0, 3)
    timed.kafka.admin().delete_records([tp])[tp].result()
    with pytest.raises(OffsetsOutOfRange, match="were deleted"):
        timed.run("i", ranges=between(5, 10), clear_number=1, on_committed="reprocess")
