"""Resets a cursor to other offsets, in the ledger and in its consumer group."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    ConfigurationError,
    GroupOwned,
    OffsetsOutOfRange,
    OutcomeUnknown,
    UnknownTopic,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.cursor import after_move
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.reset import OffsetMove, ResetRecord
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ledger.writer import LedgerTransaction
from airflow_eos.model.kafka import CommittedOffset, ProducerIdentity
from airflow_eos.model.ledger import LedgerId, LedgerMessage
from airflow_eos.model.names import checked_name
from airflow_eos.model.ranges import TopicPartition, utc_now
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.cursor_agreement import check_ledger, topics_read
from airflow_eos.run import laws

Target = Literal["earliest", "latest", "cursor", "committed"]
_SETTLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Reset:
    """The target of a cursor reset.

    :param to: start or end of the log, the ledger's cursor, or the group's committed offsets.
    :param offsets: offsets per partition, instead of ``to``.
    :param topics: only these topics; default: those that the cursor's last run read.
    :param pipeline: the owner of the group's cursor, or the future owner of a group without one.
    :param mapped: whether a group without a cursor gets one for each source partition.
    :raises ConfigurationError: a name is not valid; neither or both of ``to`` and ``offsets`` are given;
        ``offsets`` are of other topics than ``topics``.
    """

    group: str
    to: Target | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Collection[str] = ()
    pipeline: str | None = None
    mapped: bool = False

    def __post_init__(self) -> None:
        checked_name("group", self.group)
        if self.pipeline is not None:
            checked_name("pipeline", self.pipeline)
        if (self.to is None) == (not self.offsets):
            raise ConfigurationError("give either a target (earliest, latest, cursor, committed) or offsets")
        if other := sorted(str(tp) for tp in self.offsets if self.topics and tp.topic not in self.topics):
            raise ConfigurationError(f"the offsets name {', '.join(other)}, the topics do not")


@dataclass(frozen=True, slots=True)
class CursorReset:
    """The result of a reset or of its dry run."""

    group: str
    pipeline: str
    moves: tuple[OffsetMove, ...]
    done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        offsets = [
            {
                "partition": str(move.topic_partition),
                "committed": move.committed,
                "cursor": move.recorded,
                "new": move.offset,
            }
            for move in self.moves
        ]
        return {"group": self.group, "pipeline": self.pipeline, "done": self.done, "offsets": offsets}


def reset_cursor(deployment: Deployment, reset: Reset, *, execute: bool = True) -> CursorReset:
    """Move a group's offsets and its cursor together, in one transaction that fences live runs.

    The transaction also writes a reset record to the ledger. A mapped cursor moves partition by partition.

    :param execute: False for a dry run.
    :raises GroupNotEmpty: the group has live members.
    :raises GroupOwned: the group's cursor belongs to another pipeline.
    :raises LedgerReplaced: the group's offsets were committed with another ledger.
    :raises OffsetsOutOfRange: an offset is outside the log.
    :raises ConfigurationError: a partition has no such offset, or would be left without an offset.
    :raises OutcomeUnknown: an earlier transaction of the cursor's id is still open, which only a run may end.
    :raises NotYetVisible: the reset is committed, but not yet visible on all leaders.
    """
    with ControlPlane(deployment) as control:
        ledger = control.verify_ledger(to_write=execute)
        work = CursorMove(control, reset, ledger)
        changes = work.carry_out() if execute else work.dry_run()
    return CursorReset(reset.group, work.pipeline, tuple(changes), execute)


class CursorMove:
    """The reset of one group; reads the current state from ledger and brokers.

    :raises GroupNotEmpty: the group has live members.
    """

    def __init__(
        self,
        control: ControlPlane,
        reset: Reset,
        ledger: LedgerId,
        now: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._control = control
        self._reset = reset
        self._ledger = ledger
        self._moment = keys.utc_text(now())
        self._cursor = cursor = self._record(None)
        if cursor is None and reset.pipeline is None:
            raise ConfigurationError(
                f"group {reset.group!r} has no cursor in the ledger; name the pipeline that will own it"
            )
        if cursor is not None and reset.pipeline not in (None, cursor.pipeline):
            raise GroupOwned(
                f"the cursor of group {reset.group!r} belongs to pipeline {cursor.pipeline!r}, not to "
                f"{reset.pipeline!r}: a reset does not change its owner"
            )
        if cursor is not None and reset.mapped and cursor.layout != "mapped":
            raise GroupOwned(
                f"the cursor of group {reset.group!r} is {cursor.layout}, and a reset does not change that: "
                "give mapped tasks a group_id of their own"
            )
        self.pipeline = cursor.pipeline if cursor else str(reset.pipeline)
        self._prefix = cursor.prefix if cursor else control.deployment.prefix
        self._mapped = reset.mapped if cursor is None else cursor.layout == "mapped"
        topics = set(reset.topics) or {tp.topic for tp in reset.offsets}
        if not topics and cursor is not None:
            topics = set(topics_read(control, cursor))
        if not topics:
            raise ConfigurationError(f"group {reset.group!r} has no cursor in the ledger; name its topics")
        self._topics = control.cluster.describe_topics(topics)
        self._topic_ids = {name: topic.topic_id for name, topic in self._topics.items()}
        self._every = [tp for name in sorted(self._topics) for tp in self._topics[name].topic_partitions]
        if unknown := sorted(set(reset.offsets) - set(self._every)):
            raise UnknownTopic(f"{', '.join(map(str, unknown))} does not exist")
        self._partitions = sorted(reset.offsets) or self._every
        laws.group_is_empty(reset.group, control.cluster.describe_group(reset.group).members)

    def dry_run(self) -> list[OffsetMove]:
        """Return the changes that :meth:`carry_out` would make."""
        return [change for mapped in self._works() for change in self._changes(self._record(mapped), mapped)]

    def carry_out(self) -> list[OffsetMove]:
        """Fence live runs, then move offsets and cursor; return the changes."""
        changes: list[OffsetMove] = []
        for mapped in self._works():
            name = keys.cursor_transactional_id(self._prefix, self._reset.group, mapped)
            places = {self._control.authority.place(name) for name in (self._reset.group, self.pipeline)}
            with self._control.writer.fenced(name, places, may_end=False) as transaction:
                self._refuse_pending(mapped)
                intent = keys.intent_key(name)
                intents = self._control.authority.settle((), routing=self._reset.group, exceptional=(intent,))
                laws.no_open_intent(self._reset.group, intent, intents.get(intent))
                # After fencing, the cursor cannot change.
                before = self._record(mapped, fenced=True)
                own_moves = self._changes(before, mapped)
                self._commit(transaction, before, mapped, own_moves)
            self._wait_until_seen(transaction.identity, own_moves)
            changes += own_moves
        return changes

    def _refuse_pending(self, mapped: TopicPartition | None) -> None:
        """Law 12: refuse if this transaction would decide pending offsets of an earlier one of its id."""
        partitions = self._every if mapped is None else [mapped]
        if self._control.cluster.has_pending_offsets(self._reset.group, partitions):
            raise OutcomeUnknown(
                f"group {self._reset.group!r}: offsets of an earlier transaction are still pending; run the "
                "pipeline once, which ends it, or see `airflow eos repair`"
            )

    def _wait_until_seen(self, producer: ProducerIdentity, changes: list[OffsetMove]) -> None:
        """Law 12: wait until ledger and offsets show the move; the next run would undo it otherwise."""
        move = RunRecord(
            run_key=self._run_key,
            pipeline=self.pipeline,
            mode="explicit",
            run_id=self._moment,
            clear_number=0,
            try_number=0,
            group_id="",  # no group, because a reset may move offsets backwards
            ranges=(),
            records_read_by_partition={},
            receipts=(),
            producer=producer,
            started_at=self._moment,
            staged_at=self._moment,
        )
        self._control.visibility.wait(
            move,
            [self._control.authority.place(self._reset.group)],
            {change.topic_partition: change.offset for change in changes},
            self._reset.group,
            seconds=_SETTLE_SECONDS,
        )

    @property
    def _run_key(self) -> str:
        return keys.reset_run_key(self.pipeline, self._reset.group, self._moment)

    def _works(self) -> list[TopicPartition | None]:
        """Return the units of work: one for a whole cursor, one per partition for a mapped one.

        Partitions that no mapped task has read have no position for ``cursor`` or ``committed``: skip them.
        """
        if not self._mapped:
            return [None]
        if self._reset.to in ("earliest", "latest", None):
            return [*self._partitions]
        placed = self._control.cluster.committed(self._reset.group, self._partitions)
        return [tp for tp in self._partitions if tp in placed or self._is_added(tp) or self._record(tp)] or [
            *self._partitions
        ]

    def _record(self, mapped: TopicPartition | None, *, fenced: bool = False) -> CursorRecord | None:
        group = self._reset.group
        key = keys.cursor_key(group, mapped)
        return self._control.authority.record(CursorRecord, key, routing=group, fenced=fenced)

    def _changes(self, before: CursorRecord | None, mapped: TopicPartition | None) -> list[OffsetMove]:
        partitions = self._partitions if mapped is None else [mapped]
        cluster = self._control.cluster
        committed = cluster.committed(self._reset.group, partitions)
        ledger = self._control.ledger.topic
        check_ledger(self._reset.group, committed, ledger, self._ledger.topic_id)
        kept = self._without_recreated(before)
        before_ids = before.topic_ids if before and mapped is None else {}
        if unplaced := [
            str(tp)
            for tp in self._every
            if before_ids.get(tp.topic, self._topic_ids[tp.topic]) != self._topic_ids[tp.topic]
            and tp not in partitions
        ]:
            raise ConfigurationError(
                f"{', '.join(unplaced)}: the topic was created again, so the cursor has no position there; "
                "give an offset for each of its partitions, or --to earliest or latest"
            )
        recorded = {tp: kept.ends.get(tp) if kept else None for tp in partitions}
        begins, ends = cluster.log_starts(partitions), cluster.last_stable_offsets(partitions)
        changes = []
        for tp in partitions:
            offset = committed[tp].offset if tp in committed else None
            new = {
                "earliest": begins[tp],
                "latest": ends[tp],
                "cursor": recorded[tp],
                "committed": offset,
                None: self._reset.offsets.get(tp),
            }[self._reset.to]
            if new is None and recorded[tp] is None and self._is_added(tp):
                new = 0  # where runs begin to read it
            if new is None:
                raise ConfigurationError(
                    f"group {self._reset.group!r} has no {self._reset.to} offset for {tp}; give offsets, "
                    "or earliest or latest"
                )
            if not begins[tp] <= new <= ends[tp]:
                raise OffsetsOutOfRange(
                    f"{tp}: offset {new} is not between the log's start {begins[tp]} and its last stable "
                    f"offset {ends[tp]}"
                )
            changes.append(OffsetMove(tp, offset, recorded[tp], new))
        return changes

    def _commit(
        self,
        transaction: LedgerTransaction,
        before: CursorRecord | None,
        mapped: TopicPartition | None,
        changes: list[OffsetMove],
    ) -> None:
        group = self._reset.group
        move = CursorRecord(
            group=group,
            pipeline=self.pipeline,
            prefix=self._prefix,
            layout="whole" if mapped is None else "mapped",
            ends={change.topic_partition: change.offset for change in changes},
            topic_ids=self._topic_ids,
            partition_counts={name: topic.partitions for name, topic in self._topics.items()},
            run_key=self._run_key,
            ledger_topic_id=self._ledger.topic_id,
            ledger_partitions=self._ledger.partitions,
        )
        after = after_move(self._without_recreated(before), move)
        moved = ResetRecord(group, self.pipeline, tuple(changes))
        messages = [
            LedgerMessage(keys.cursor_key(group, mapped), after.to_json(), group),
            LedgerMessage(keys.reset_key(group, self._moment, mapped), moved.to_json(), group),
        ]
        if mapped is not None:
            layout = replace(
                self._cursor or replace(after, ends={}, epochs={}),
                topic_ids=after.topic_ids,
                partition_counts=after_move(self._cursor, move).partition_counts,
            )
            messages.append(LedgerMessage(keys.cursor_key(group), layout.to_json(), group))
        partition = self._control.ledger.partition_for(group)
        metadata = keys.offset_metadata(self._run_key, partition, self._ledger.topic_id)
        offsets = {tp: CommittedOffset(offset, metadata) for tp, offset in move.ends.items()}
        transaction.commit(messages, group=group, offsets=offsets)

    def _without_recreated(self, before: CursorRecord | None) -> CursorRecord | None:
        """Return a cursor without the offsets of topics that were created again since."""
        if before is None:
            return None
        recreated = {name for name, now in self._topic_ids.items() if before.topic_ids.get(name) != now}
        ends = {tp: end for tp, end in before.ends.items() if tp.topic not in recreated}
        # Keep the epochs of partitions that are not moved: they still show whether the log was rewritten.
        return replace(before, ends=ends, epochs={tp: e for tp, e in before.epochs.items() if tp in ends})

    def _is_added(self, tp: TopicPartition) -> bool:
        """Return whether a partition was added to a topic of the cursor since the cursor first named it."""
        cursor = self._cursor
        if cursor is None or cursor.topic_ids.get(tp.topic) != self._topic_ids[tp.topic]:
            return False
        return cursor.is_added(tp)
