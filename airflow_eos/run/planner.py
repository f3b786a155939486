"""Pins the offset ranges of a run by its mode, and checks the plan's conditions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_eos.exceptions import (
    CursorMoved,
    IntervalNotReady,
    LedgerReplaced,
    NoStartingPoint,
    UnknownTopic,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.cursor import layout_of
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import TOPIC_IDS, RunRecord
from airflow_eos.model.kafka import CommittedOffset, LogBounds, TopicDescription
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
from airflow_eos.run import laws, log_coverage, mapping, retention, skips
from airflow_eos.run.boundaries import Boundaries, moved_by
from airflow_eos.run.round_size import bounded_to_data
from airflow_eos.run.undecided import undecided


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


class Planner:
    """Makes plans, and rechecks them.

    :param ledger: topic id and partition count of the ledger in use.
    """

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        authority: Authority,
        boundaries: Boundaries,
        ledger: LedgerId,
        now: Callable[[], dt.datetime],
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._authority = authority
        self._boundaries = boundaries
        self._ledger = ledger
        self._now = now

    def plan(self, described: Mapping[str, TopicDescription], recorded: RunRecord | None = None) -> Planned:
        """Pin the ranges; the caller has checked that a group whose cursor moves has no members (law 6).

        :param described: at least the source topics, as they are now.
        :param recorded: a committed run whose ranges are read again.
        :raises PlanError: names the condition that does not hold.
        """
        topics, bounds = self._sources(described), None
        mode = self._spec.ranges
        if recorded is not None:
            was = RunPlan(
                "reprocess", (), recorded.details.get(TOPIC_IDS, {}), self._spec.group_id, advances=False
            )
            laws.topics_unchanged(was, {name: t.topic_id for name, t in topics.items()})
            planned = self._given(topics, recorded.ranges, "reprocess")
        else:
            planned, bounds = self._chosen(topics, mode)
        interval = interval_of(mode)
        if interval is not None and interval.accept_deleted:
            planned = replace(planned, plan=self._what_is_left(planned.plan))
        plan = self._check_logs(skips.without(planned.plan, self._spec.skip_offsets), bounds)
        notes = retention.notes(self._cluster, plan, self._spec.sink_topic, interval, self._now())
        return replace(planned, plan=replace(plan, notes=(*plan.notes, *notes)))

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

    def _sources(self, described: Mapping[str, TopicDescription]) -> Mapping[str, TopicDescription]:
        return {name: described[name] for name in self._spec.source_topics}

    def recheck(
        self, plan: RunPlan, described: Mapping[str, TopicDescription], *, staged: bool = False
    ) -> None:
        """Check that an earlier plan may still commit (laws 5 and 6).

        :param described: at least the source topics, as they are now.
        :param staged: our own transaction has pending offsets of the group.
        :raises PlanError: names what changed.
        """
        topics = self._sources(described)
        laws.topics_unchanged(plan, {name: t.topic_id for name, t in topics.items()})
        if plan.advances:
            group = self._cluster.describe_group(plan.offsets_group)
            laws.group_is_empty(group.group, group.members)
            laws.cursor_unmoved(
                plan, self._cluster.committed(plan.offsets_group, list(plan.starts), stable=not staged)
            )

    def _partitions(self, topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
        only = keys.mapped_partition(self._spec)
        if only is None:
            return [tp for name in sorted(topics) for tp in topics[name].topic_partitions]
        if only.partition >= topics[only.topic].partitions:
            raise UnknownTopic(
                f"topic {only.topic!r} has {topics[only.topic].partitions} partitions, "
                f"source_partition is {only.partition}"
            )
        return [only]

    def _what_is_left(self, plan: RunPlan) -> RunPlan:
        """Return the plan without deleted offsets, and with the accepted loss."""
        starts = self._cluster.log_starts(list(plan.starts))
        behind = {r.topic_partition for r in plan.ranges if r.span and starts[r.topic_partition] > r.start}
        heads = log_coverage.deleted_heads(self._cluster, {tp: starts[tp] for tp in sorted(behind)})
        left, losses = log_coverage.what_is_left(plan.ranges, heads)
        loss = (*plan.accepted_loss, *losses)
        notes = (*plan.notes, *log_coverage.accepted_notes(loss))
        return replace(plan, ranges=left, accepted_loss=loss, notes=notes)

    def _check_logs(self, plan: RunPlan, bounds: LogBounds | None) -> RunPlan:
        """Check the ranges against the logs; return the plan with the offsets behind open transactions."""
        # Each partition once: brokers refuse a request that names one twice.
        bounds = bounds or self._cluster.log_bounds(list(plan.starts))
        starts, stable = bounds.starts, bounds.stable
        beyond = {r.topic_partition for r in plan.ranges if r.end > stable[r.topic_partition]}
        ends = {**stable, **(self._cluster.log_ends(beyond) if beyond else {})}
        for wanted in plan.ranges:
            tp = wanted.topic_partition
            laws.within_log(wanted, starts[tp], ends[tp], plan.mode)
            laws.is_decided(wanted, stable[wanted.topic_partition])
        waiting = undecided(self._cluster, bounds.ends, stable)
        # A range that ends below them was not meant to reach them.
        reached = [
            offsets
            for offsets in waiting
            if plan.advances or plan.ends[offsets.topic_partition] >= offsets.offsets.start
        ]
        return replace(
            plan,
            notes=(*plan.notes, *map(str, reached)),
            undecided=sum(offsets.offsets.span for offsets in reached),
        )

    # -- cursor --

    def _from_cursor(self, topics: Mapping[str, TopicDescription], mode: Cursor) -> tuple[Planned, LogBounds]:
        group = self._spec.group_id
        partitions = self._partitions(topics)
        committed = self._cluster.committed(group, partitions)
        cursor, layout = self._cursor(topics, committed)
        bounds = self._cluster.log_bounds(partitions)
        log_starts, stable = bounds.starts, bounds.stable
        notes = mapping.notes(self._spec, self._authority, topics, layout)
        starts = {
            tp: self._start(tp, cursor, layout, committed, log_starts[tp], stable[tp], mode, notes)
            for tp in partitions
        }
        for tp, start in starts.items():
            if start > stable[tp]:
                raise CursorMoved(
                    f"group {group!r} stands at {start} in {tp}, beyond the last stable offset {stable[tp]}: "
                    "the log was truncated, or its end is in an open transaction the cursor never saw; "
                    "inspect the topic, then reset the cursor with `airflow eos reset-offsets`"
                )
        ends = bounded_to_data(self._cluster, starts, stable, mode.max_records)
        plan = RunPlan(
            mode="cursor",
            ranges=tuple(
                OffsetRange(tp.topic, tp.partition, starts[tp], ends[tp]) for tp in sorted(partitions)
            ),
            topic_ids={name: t.topic_id for name, t in topics.items()},
            offsets_group=group,
            advances=True,
            committed={tp: c.offset for tp, c in committed.items()},
            notes=tuple(notes),
            lag=sum(stable[tp] - ends[tp] for tp in partitions),
        )
        counts = {name: t.partitions for name, t in topics.items()}
        return Planned(plan, counts, cursor, layout is not None), bounds

    def _cursor(
        self, topics: Mapping[str, TopicDescription], committed: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[CursorRecord | None, CursorRecord | None]:
        """Return the cursor to start from and the record of the layout, after checks that both are ours."""
        group = self._spec.group_id
        only = keys.mapped_partition(self._spec)
        wanted = [keys.cursor_key(group)] + ([keys.cursor_key(group, only)] if only else [])
        intent = keys.intent_key(keys.cursor_transactional_id(self._spec.prefix, group, only))
        # As a prefix: that there is none, which is the rule, is not a *no* that anything rests on here.
        values = self._authority.settle(wanted, routing=group, prefixes=(intent,))
        laws.no_open_intent(group, values.get(intent))
        records = {key: CursorRecord.from_json(values[key], key) for key in wanted if key in values}
        for record in records.values():
            laws.group_is_ours(group, "pipeline", record.pipeline, self._spec.pipeline)
            laws.group_is_ours(group, "prefix", record.prefix, self._spec.prefix)
            laws.group_is_ours(group, "layout", record.layout, layout_of(self._spec))
            if record.origin and self._spec.origin:
                laws.group_is_ours(group, "origin", record.origin, self._spec.origin)
            now = self._ledger.topic_id, self._ledger.partitions
            if (record.ledger_topic_id, record.ledger_partitions) != now:
                raise LedgerReplaced(
                    f"the cursor of group {group!r} was written to ledger {record.ledger_topic_id} with "
                    f"{record.ledger_partitions} partitions, the ledger is now {self._ledger.topic_id} with "
                    f"{self._ledger.partitions}; restore the ledger topic, or start over with a new group_id"
                )
            known = {t: i for t, i in record.topic_ids.items() if t in topics}
            plan_ids = RunPlan("cursor", (), known, group, advances=True)
            laws.topics_unchanged(plan_ids, {name: t.topic_id for name, t in topics.items()})
        self._check_metadata(committed, found_any=bool(records))
        layout = records.get(keys.cursor_key(group))
        return (records.get(wanted[-1]) if only else layout), layout

    def _check_metadata(
        self, committed: Mapping[TopicPartition, CommittedOffset], *, found_any: bool
    ) -> None:
        """Refuse offsets that were committed beside another ledger, or beside one that lost its cursor."""
        for tp, offset in committed.items():
            ledger = keys.metadata_ledger(offset.metadata)
            if ledger is not None and (ledger != self._ledger.topic_id or not found_any):
                raise LedgerReplaced(
                    f"group {self._spec.group_id!r} committed offset {offset.offset} of {tp} beside "
                    f"ledger {ledger}; the ledger {self._spec.ledger.topic!r} (id {self._ledger.topic_id}) "
                    "knows nothing of this group: it was deleted, re-created or is another one. "
                    "Restore it, or start over with a new group_id"
                )

    def _start(
        self,
        tp: TopicPartition,
        cursor: CursorRecord | None,
        layout: CursorRecord | None,
        committed: Mapping[TopicPartition, CommittedOffset],
        log_start: int,
        stable: int,
        mode: Cursor,
        notes: list[str],
    ) -> int:
        group = self._spec.group_id
        recorded = cursor.ends.get(tp) if cursor else None
        offset = committed[tp].offset if tp in committed else None
        if recorded is not None:
            if offset is None:
                notes.append(
                    f"{tp}: group {group!r} has no committed offset (expired); starting from the "
                    f"ledger's {recorded}"
                )
            elif offset != recorded:
                raise self._moved(
                    f"group {group!r}, {tp}: the committed offset is {offset}, the ledger's cursor "
                    f"{recorded}",
                    "somebody else committed to this group. Choose one with `airflow eos reset-offsets`",
                )
            return recorded
        known = (layout.partition_counts.get(tp.topic) if layout else None) or 0
        if known and tp.partition >= known:
            if offset is not None:
                raise self._moved(
                    f"group {group!r}, {tp}: offset {offset} was committed for a partition the cursor does "
                    "not know",
                    "choose a start with `airflow eos reset-offsets`",
                )
            notes.append(f"{tp}: partition was added since the last run; reading it from offset 0")
            return 0
        if offset is not None:
            notes.append(f"{tp}: no cursor yet; adopting the committed offset {offset} of group {group!r}")
            return offset
        if mode.start == "fail":
            raise NoStartingPoint(
                f"group {group!r} has neither a committed offset nor a cursor for {tp}, and start is 'fail'; "
                "set start to 'earliest' or 'latest', or commit an offset first"
            )
        return log_start if mode.start == "earliest" else stable

    def _moved(self, difference: str, advice: str) -> CursorMoved:
        """Return the refusal, with unsigned records of the cursor instead of the advice, if there are any."""
        group = self._spec.group_id
        names = {keys.cursor_key(group), keys.cursor_key(group, keys.mapped_partition(self._spec))}
        unsigned = self._authority.unsigned(names, routing=group)
        return CursorMoved(f"{difference}: {'; '.join(unsigned) or advice}")

    # -- intervals and given ranges --

    def _between(self, topics: Mapping[str, TopicDescription], interval: Interval, mode: ModeName) -> Planned:
        if interval.end > self._now():
            raise IntervalNotReady(
                f"the interval ends at {keys.utc_text(interval.end)}, in the future; run it when it is over"
            )
        wanted = set(self._partitions(topics))
        ranges: list[OffsetRange] = []
        notes: list[str] = []
        loss: list[Mapping[str, Any]] = []
        for name in sorted(topics):
            first, last = (
                self._boundaries.boundary(
                    topics[name], moment, interval.allowed_lateness, accept_deleted=interval.accept_deleted
                )
                for moment in (interval.start, interval.end)
            )
            for partition, end in sorted(last.offsets.items()):
                if TopicPartition(name, partition) in wanted:
                    start = first.offsets.get(partition, 0)
                    ranges.append(OffsetRange(name, partition, start, max(start, end)))
            for bound in (first, last):
                loss += log_coverage.accepted(name, bound.moment, bound.unproven, wanted)
            notes += moved_by(first, last)
        stable = self._cluster.last_stable_offsets([r.topic_partition for r in ranges])
        ends = {r.topic_partition: r.end for r in ranges}
        for waiting in undecided(self._cluster, ends, stable):
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
        group = self._spec.group_id
        partitions = sorted(r.topic_partition for r in ranges)
        committed = self._cluster.committed(group, partitions)
        cursor, layout = self._cursor(topics, committed)
        for r in ranges:
            recorded = cursor.ends.get(r.topic_partition) if cursor else None
            offset = committed[r.topic_partition].offset if r.topic_partition in committed else None
            stands = recorded if recorded is not None else offset
            if (stands is not None and stands != r.start) or (
                None not in (recorded, offset) and recorded != offset
            ):
                raise self._moved(
                    f"group {group!r}, {r.topic_partition}: the range starts at {r.start}, "
                    f"the ledger's cursor is {recorded} and the committed offset {offset}",
                    "with advance=True all must agree",
                )
        planned = self._planned(topics, sorted(ranges), mode)
        plan = replace(
            planned.plan,
            offsets_group=group,
            advances=True,
            committed={tp: c.offset for tp, c in committed.items()},
        )
        return Planned(plan, planned.partition_counts, cursor, layout is not None)

    def _planned(
        self, topics: Mapping[str, TopicDescription], ranges: Collection[OffsetRange], mode: ModeName
    ) -> Planned:
        plan = RunPlan(
            mode=mode,
            ranges=tuple(ranges),
            topic_ids={name: t.topic_id for name, t in topics.items()},
            offsets_group=f"{self._spec.group_id}.runs",
            advances=False,
        )
        return Planned(plan, {name: t.partitions for name, t in topics.items()})
