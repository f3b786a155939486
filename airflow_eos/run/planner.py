"""Pins the offset ranges of a run by its mode, and checks the plan's conditions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_eos.exceptions import IntervalNotReady, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import TOPIC_IDS, RunRecord
from airflow_eos.model.kafka import LogBounds, SinkTopic, TopicDescription
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.plan import ModeName, RunPlan
from airflow_eos.model.ranges import (
    Cursor,
    Explicit,
    Interval,
    OffsetRange,
    PartitionInterval,
    RangeMode,
    TopicPartition,
    interval_of,
)
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster
from airflow_eos.run import laws, log_coverage, retention, rounds, skips
from airflow_eos.run.boundaries import Boundaries, moved_by, refuse_behind
from airflow_eos.run.cursor_position import CursorPosition, CursorReader
from airflow_eos.run.replacing import replaces_rows
from airflow_eos.run.undecided import undecided
from airflow_eos.run.work import mapped_otherwise

MOST_NOTES = 100
"""Maximum number of notes of a plan; notes on thousands of partitions would not fit into its record."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the state of its cursor.

    :param cursor: the cursor at the start of the plan.
    :param layout_known: whether the ledger already contains the layout of a mapped cursor.
    """

    plan: RunPlan
    partition_counts: Mapping[str, int]
    cursor: CursorRecord | None = None
    layout_known: bool = True


@dataclass(eq=False)
class Planner:
    """Makes plans, and rechecks them.

    :param ledger: topic id and partition count of the ledger in use.
    """

    spec: RunSpec
    cluster: Cluster
    authority: Authority
    boundaries: Boundaries
    ledger: LedgerId
    now: Callable[[], dt.datetime]

    def __post_init__(self) -> None:
        self._cursors = CursorReader(self.spec, self.cluster, self.authority, self.ledger)
        self._sinks = self.spec.output_topics if self.spec.sink is None else ()

    def plan(self, described: Mapping[str, TopicDescription], recorded: RunRecord | None = None) -> Planned:
        """Pin the ranges; the caller has checked that a group whose cursor moves has no members (law 6).

        :param described: the source topics as they are now, and the output topics if they are known.
        :param recorded: a committed run whose ranges are read again.
        :raises PlanError: names the condition that does not hold.
        """
        topics, bounds = {name: described[name] for name in self.spec.source_topics}, None
        mode = self.spec.ranges
        if recorded is not None or not isinstance(mode, Cursor):
            self._refuse_changed_task(topics, recorded)
        if recorded is not None:
            laws.topics_unchanged(recorded.details.get(TOPIC_IDS, {}), topics, advances=False)
            planned = self._given(topics, recorded.ranges, "reprocess")
        else:
            planned, bounds = self._chosen(topics, mode)
        interval = interval_of(mode)
        is_replacement = recorded is not None and replaces_rows(self.spec)
        if interval is not None and interval.accept_deleted and not is_replacement:
            planned = replace(planned, plan=self._without_deleted(planned.plan))
        plan = planned.plan
        if self.spec.skip_offsets:
            plan = skips.without(plan, self.spec.skip_offsets)
        plan = self._check_logs(plan, bounds)
        if self._sinks and plan.offsets:
            settings = self.cluster.topic_settings(self._sinks)
            leaders = {name: topic.leaders for name, topic in described.items()}
            sinks = {name: SinkTopic(leaders.get(name, {}), settings.get(name, {})) for name in self._sinks}
            plan = replace(plan, sinks=sinks)
        notes = retention.notes(self.cluster, plan, self.spec.sink_topic, interval, self.now())
        notes = [*plan.notes, *notes]
        if len(notes) > MOST_NOTES:
            half = MOST_NOTES // 2
            notes[half:-half] = [f"{len(notes) - MOST_NOTES} more notes, of other partitions"]
        return replace(planned, plan=replace(plan, notes=tuple(notes)))

    def _chosen(
        self, topics: Mapping[str, TopicDescription], mode: RangeMode
    ) -> tuple[Planned, LogBounds | None]:
        """Return the plan of a mode, and the bounds of its logs if they were requested for it."""
        match mode:
            case Cursor():
                return self._from_cursor(topics, mode)
            case Interval():
                return self._between(topics, mode, "interval"), None
            case PartitionInterval():
                return self._between(topics, mode.interval, "partition"), None
            case Explicit():
                return self._given(topics, mode.ranges, "explicit", advances=mode.advance), None

    def recheck(
        self, plan: RunPlan, described: Mapping[str, TopicDescription], *, staged: bool = False
    ) -> None:
        """Check that an earlier plan may still commit (laws 5 and 6).

        :param described: at least the source topics, as they are now.
        :param staged: our own transaction has pending offsets of the group.
        :raises PlanError: names what changed.
        """
        topics = {name: described[name] for name in self.spec.source_topics}
        laws.topics_unchanged(plan.topic_ids, topics, advances=plan.advances)
        if plan.advances:
            group = self.cluster.describe_group(plan.offsets_group)
            laws.group_is_empty(group.group, group.members)
            laws.cursor_unmoved(
                plan, self.cluster.committed(plan.offsets_group, list(plan.starts), stable=not staged)
            )

    def _partitions(self, topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
        mapped = keys.mapped_partition(self.spec)
        if mapped is None:
            return [tp for name in sorted(topics) for tp in topics[name].topic_partitions]
        if mapped.partition >= topics[mapped.topic].partitions:
            raise UnknownTopic(
                f"topic {mapped.topic!r} has {topics[mapped.topic].partitions} partitions, "
                f"source_partition is {mapped.partition}"
            )
        return [mapped]

    def _refuse_changed_task(
        self, topics: Mapping[str, TopicDescription], recorded: RunRecord | None
    ) -> None:
        """Refuse to repeat what the task has, or may have, written with another mapping, sink or prefix.

        The INTENT of a cursor is checked with its position; a table that is this run's sink settles its own.
        Of other prefixes only that which created the ledger is known.

        :raises DifferentWork: names the other run.
        """
        partitions = max(topic.partitions for topic in topics.values())
        others = [] if recorded is not None else keys.other_layout_keys(self.spec, partitions)
        ids = [keys.other_layout_id(self.spec, key) for key in others]
        if self.spec.sink is None:
            again = recorded and keys.reprocess_transactional_id(self.spec, recorded.run_key)
            ids.append(again or keys.transactional_id(self.spec))
        if self.ledger.prefix != self.spec.prefix:
            ids.append(keys.transactional_id(replace(self.spec, prefix=self.ledger.prefix)))
        if not ids:
            return
        records = {keys.run_record_key(key): key for key in others}
        intents = [keys.intent_key(name) for name in ids]
        routing = keys.intent_routing(self.spec)
        values = self.authority.settle((), routing=routing, exceptional=[*records, *intents])
        for name in values.keys() & records.keys():
            raise mapped_otherwise(records[name], mapped=self.spec.source_partition is not None)
        for intent in intents:
            laws.no_open_intent(self.spec.group_id, intent, values.get(intent))

    def _without_deleted(self, plan: RunPlan) -> RunPlan:
        """Return the plan without deleted offsets, and with the accepted loss."""
        starts = self.cluster.log_starts(list(plan.starts))
        behind = {r.topic_partition for r in plan.ranges if r.span and starts[r.topic_partition] > r.start}
        heads = log_coverage.deleted_heads(self.cluster, {tp: starts[tp] for tp in sorted(behind)})
        left, losses = log_coverage.without_deleted(plan.ranges, heads)
        loss = (*plan.accepted_loss, *losses)
        notes = (*plan.notes, *log_coverage.accepted_notes(loss))
        return replace(plan, ranges=left, accepted_loss=loss, notes=notes)

    def _check_logs(self, plan: RunPlan, bounds: LogBounds | None) -> RunPlan:
        """Check the ranges against the logs; return the plan with the offsets behind open transactions."""
        # Each partition once: brokers refuse a request that names one twice.
        bounds = bounds or self.cluster.log_bounds(list(plan.starts))
        starts, stable = bounds.starts, bounds.stable
        beyond = {r.topic_partition for r in plan.ranges if r.end > stable[r.topic_partition]}
        ends = {**stable, **(self.cluster.log_ends(beyond) if beyond else {})}
        for wanted in plan.ranges:
            tp = wanted.topic_partition
            laws.within_log(wanted, starts[tp], ends[tp], plan.mode)
            laws.is_decided(wanted, stable[wanted.topic_partition])
        waiting = undecided(self.cluster, bounds.ends, stable)
        # A range that ends below them was not meant to include them.
        reached = [
            offsets
            for offsets in waiting
            if plan.advances or plan.ends[offsets.topic_partition] >= offsets.offsets.start
        ]
        return replace(
            plan,
            notes=(*plan.notes, *map(str, reached)),
            undecided=sum(offsets.offsets.span for offsets in reached),
            epochs=bounds.epochs if plan.advances else {},
        )

    # -- modes --

    def _from_cursor(self, topics: Mapping[str, TopicDescription], mode: Cursor) -> tuple[Planned, LogBounds]:
        partitions = self._partitions(topics)
        position = self._cursors.position(topics, partitions)
        bounds = self.cluster.log_bounds(partitions)
        starts, notes = self._cursors.starts(topics, position, bounds, mode)
        ends = bounds.stable
        if mode.max_records is not None:
            ends = rounds.bounded_to_data(self.cluster, starts, bounds.stable, mode.max_records)
        ranges = [OffsetRange(tp.topic, tp.partition, starts[tp], ends[tp]) for tp in sorted(partitions)]
        planned = self._planned(topics, ranges, "cursor", position)
        lag = sum(bounds.stable[tp] - ends[tp] for tp in partitions)
        plan = replace(planned.plan, notes=notes, lag=lag)
        return replace(planned, plan=plan), bounds

    def _between(self, topics: Mapping[str, TopicDescription], interval: Interval, mode: ModeName) -> Planned:
        if interval.end > (now := self.now()):
            error = IntervalNotReady(
                f"the interval ends at {keys.utc_text(interval.end)}, in the future: it is "
                f"{keys.utc_text(now)} by this host's clock. Run it when it is over"
            )
            # Not for a mistyped year; Airflow starts the runs of some schedules as their partition begins.
            error.until = interval.end + interval.allowed_lateness if interval.start <= now else None
            raise error
        wanted = set(self._partitions(topics))
        ranges: list[OffsetRange] = []
        notes: list[str] = []
        loss: list[Mapping[str, Any]] = []
        for name in sorted(topics):
            first, last = (
                self.boundaries.boundary(
                    topics[name], moment, interval.allowed_lateness, accept_deleted=interval.accept_deleted
                )
                for moment in (interval.start, interval.end)
            )
            refuse_behind(topics[name], (first, last))
            # A boundary pinned before the partition existed puts it at 0.
            for partition in sorted(tp.partition for tp in wanted if tp.topic == name):
                start, end = (bound.offsets.get(partition, 0) for bound in (first, last))
                ranges.append(OffsetRange(name, partition, start, max(start, end)))
            for bound in (first, last):
                loss += log_coverage.accepted(name, bound.moment, bound.unproven, wanted)
            notes += moved_by(first, last)
        stable = self.cluster.last_stable_offsets([r.topic_partition for r in ranges])
        ends = {r.topic_partition: r.end for r in ranges}
        for waiting in undecided(self.cluster, ends, stable):
            raise IntervalNotReady(
                f"{waiting.topic_partition}: the interval ends at offset {waiting.offsets.end}, the last "
                f"stable offset is {waiting.offsets.start}: {waiting}; retry when it has ended"
            )
        planned = self._planned(topics, ranges, mode)
        plan = replace(planned.plan, notes=tuple(notes), accepted_loss=tuple(loss))
        return replace(planned, plan=plan)

    def _given(
        self,
        topics: Mapping[str, TopicDescription],
        ranges: Collection[OffsetRange],
        mode: ModeName,
        *,
        advances: bool = False,
    ) -> Planned:
        missing = [r for r in ranges if r.topic not in topics or r.partition >= topics[r.topic].partitions]
        if missing:
            raise UnknownTopic(
                f"ranges name {', '.join(str(r.topic_partition) for r in missing)}, which the source topics "
                f"{', '.join(sorted(topics))} do not have"
            )
        if not advances:
            return self._planned(topics, sorted(ranges), mode)
        position = self._cursors.position(topics, sorted(r.topic_partition for r in ranges))
        for wanted in ranges:
            self._cursors.check_start(position, wanted)
        return self._planned(topics, sorted(ranges), mode, position)

    def _planned(
        self,
        topics: Mapping[str, TopicDescription],
        ranges: Collection[OffsetRange],
        mode: ModeName,
        position: CursorPosition | None = None,
    ) -> Planned:
        """Return a plan of ranges; with a position, its commit moves the cursor on from there."""
        group, counts = self.spec.group_id, {name: t.partitions for name, t in topics.items()}
        plan = RunPlan(
            mode=mode,
            ranges=tuple(ranges),
            topic_ids={name: t.topic_id for name, t in topics.items()},
            offsets_group=f"{group}.runs" if position is None else group,
            advances=position is not None,
        )
        if position is None:
            return Planned(plan, counts)
        plan = replace(plan, committed={tp: at.offset for tp, at in position.committed.items()})
        return Planned(plan, counts, position.cursor, layout_known=position.layout is not None)
