"""The position of a cursor in its consumer group and in the ledger, and the starts of its next ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import (
    CursorMoved,
    GroupOwned,
    LedgerReplaced,
    NoStartingPoint,
    OffsetsOutOfRange,
    RangeUndecided,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.cursor import layout_of
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import CommittedOffset, LogBounds, TopicDescription
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.ranges import Cursor, OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster
from airflow_eos.run import laws
from airflow_eos.run.log_coverage import rewritten_from
from airflow_eos.run.undecided import undecided

# Advice for offsets that a run committed: their metadata names the ledger.
_OFFSETS_ARE_NEWER = (
    "a run committed that offset beside this ledger, in which somebody put an older cursor since, or which "
    "lost its end in an unclean leader election: see who writes to it, and `airflow eos doctor`, then "
    "`airflow eos reset-offsets` --to committed"
)
_OFFSETS_ARE_OLDER = (
    "an earlier run committed that offset, so __consumer_offsets lost its end in an unclean leader election, "
    "it was given partitions, or somebody restored old offsets: `airflow eos reset-offsets` --to cursor goes "
    "on where the last run ended"
)


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """The position of a cursor; group and ledger may differ.

    :param committed: the group's committed offsets; omits partitions without one.
    :param cursor: the ledger's record of this cursor; None before its first run.
    :param layout: the record that has the group's partition counts: that of the whole group if this cursor
        is mapped to one source partition, else ``cursor``.
    """

    committed: Mapping[TopicPartition, CommittedOffset]
    cursor: CursorRecord | None
    layout: CursorRecord | None


@dataclass(frozen=True, slots=True)
class CursorReader:
    """Reads the position of a run's cursor, and decides where its ranges start.

    :param ledger: topic id and partition count of the ledger in use.
    """

    spec: RunSpec
    cluster: Cluster
    authority: Authority
    ledger: LedgerId

    def position(
        self, topics: Mapping[str, TopicDescription], partitions: Collection[TopicPartition]
    ) -> CursorPosition:
        """Return the position, after checking that offsets and records belong to this pipeline.

        :raises PlanError: names the condition that does not hold.
        """
        group = self.spec.group_id
        committed = self.cluster.committed(group, list(partitions))
        mapped = keys.mapped_partition(self.spec)
        wanted = [keys.cursor_key(group)] + ([keys.cursor_key(group, mapped)] if mapped else [])
        # A first run may have been tried under the prefix that created the ledger.
        prefixes = dict.fromkeys((self.spec.prefix, self.ledger.prefix))
        intents = [keys.intent_key(keys.cursor_transactional_id(each, group, mapped)) for each in prefixes]
        values = self.authority.settle(wanted, routing=group, exceptional=intents)
        for intent in intents:
            laws.no_open_intent(group, intent, values.get(intent))
        records = {key: CursorRecord.from_json(values[key], key) for key in wanted if key in values}
        for record in records.values():
            laws.group_is_ours(group, "pipeline", record.pipeline, self.spec.pipeline)
            laws.group_is_ours(group, "prefix", record.prefix, self.spec.prefix)
            laws.group_is_ours(group, "layout", record.layout, layout_of(self.spec))
            if record.origin and self.spec.origin:
                laws.group_is_ours(group, "origin", record.origin, self.spec.origin)
            now = self.ledger.topic_id, self.ledger.partitions
            if (record.ledger_topic_id, record.ledger_partitions) != now:
                raise LedgerReplaced(
                    f"the cursor of group {group!r} was written to ledger {record.ledger_topic_id} with "
                    f"{record.ledger_partitions} partitions, the ledger is now {self.ledger.topic_id} with "
                    f"{self.ledger.partitions}; restore the ledger topic, or start over with a new group_id"
                )
            laws.topics_unchanged(record.topic_ids, topics, advances=True)
        self._check_metadata(committed, found_any=bool(records))
        layout = records.get(keys.cursor_key(group))
        return CursorPosition(committed, records.get(wanted[-1]) if mapped else layout, layout)

    def starts(
        self,
        topics: Mapping[str, TopicDescription],
        position: CursorPosition,
        bounds: LogBounds,
        mode: Cursor,
    ) -> tuple[dict[TopicPartition, int], tuple[str, ...]]:
        """Return where the ranges start, and notes for the log.

        :param bounds: log bounds of the partitions to read.
        :raises CursorMoved: group and ledger differ, or the position is beyond the log.
        :raises RangeUndecided: a transaction is open before the position.
        :raises NoStartingPoint: there is no position, and the mode accepts none.
        :raises OffsetsOutOfRange: the log was truncated below the position, and rewritten.
        """
        notes = self._unread_partitions(topics, position.layout)
        starts = {tp: self._start(tp, position, bounds, mode, notes) for tp in sorted(bounds.starts)}
        for tp, start in starts.items():
            if start > bounds.ends[tp]:
                raise CursorMoved(
                    f"group {self.spec.group_id!r} stands at {start} in {tp}, beyond the end of the log at "
                    f"{bounds.ends[tp]}: the log was truncated; inspect the topic, then go on where its log "
                    f"does: `airflow eos reset-offsets` with --offset {tp.topic}:{tp.partition}="
                    f"{bounds.stable[tp]}"
                )
        epochs = position.cursor.epochs if position.cursor else {}
        if epochs.items() - bounds.epochs.items():  # some leader has changed
            self._refuse_rewritten(starts, epochs, bounds)
        for waiting in undecided(self.cluster, starts, bounds.stable):
            raise RangeUndecided(
                f"group {self.spec.group_id!r} stands at {waiting.offsets.end} in {waiting.topic_partition}, "
                f"as a read_uncommitted consumer may have left it: {waiting}; retry when it has ended"
            )
        return starts, tuple(notes)

    def _refuse_rewritten(
        self, starts: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], bounds: LogBounds
    ) -> None:
        """Refuse a position above the start of a later leader epoch: that leader lacked what was read."""
        for tp, end in rewritten_from(self.cluster, starts, epochs, bounds.epochs).items():
            raise OffsetsOutOfRange(
                f"{tp}: group {self.spec.group_id!r} stands at {starts[tp]}, but a leader without the last "
                f"records was elected (unclean), and the log was rewritten from {end} on: what is there "
                "now was not read, unless the election came while the last run was under way (compare with "
                "its output). Move the cursor: `airflow eos reset-offsets`, with "
                f"--offset {tp.topic}:{tp.partition}={end} to read it, or ={starts[tp]} to leave it out"
            )

    def check_start(self, position: CursorPosition, wanted: OffsetRange) -> None:
        """Check that a given range starts at the cursor's position; in an added partition, at offset 0.

        :raises CursorMoved: names all three offsets.
        """
        tp, layout = wanted.topic_partition, position.layout
        added = 0 if layout and layout.is_added(tp) else None
        recorded = position.cursor.ends.get(tp, added) if position.cursor else added
        offset = position.committed[tp].offset if tp in position.committed else None
        if {recorded, offset} - {None, wanted.start}:
            raise self._moved(
                f"group {self.spec.group_id!r}, {tp}: the range starts at {wanted.start}, "
                f"the ledger's cursor is {recorded} and the committed offset {offset}",
                "with advance=True all must agree",
            )

    def _start(
        self,
        tp: TopicPartition,
        position: CursorPosition,
        bounds: LogBounds,
        mode: Cursor,
        notes: list[str],
    ) -> int:
        group, layout = self.spec.group_id, position.layout
        recorded = position.cursor.ends.get(tp) if position.cursor else None
        offset = position.committed[tp].offset if tp in position.committed else None
        if recorded is not None:
            if offset is None:
                notes.append(
                    f"{tp}: group {group!r} has no committed offset (expired); starting from the "
                    f"ledger's {recorded}"
                )
            elif offset != recorded:
                advice = "somebody else committed to this group. Choose one with `airflow eos reset-offsets`"
                if keys.metadata_ledger(position.committed[tp].metadata) == self.ledger.topic_id:
                    advice = _OFFSETS_ARE_NEWER if offset > recorded else _OFFSETS_ARE_OLDER
                raise self._moved(
                    f"group {group!r}, {tp}: the committed offset is {offset}, the ledger's cursor "
                    f"{recorded}",
                    advice,
                )
            return recorded
        if layout and layout.is_added(tp):
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
                "set start to 'earliest' or 'latest', or give the group a position by `airflow eos "
                f"reset-offsets`{' --mapped' if layout_of(self.spec) == 'mapped' else ''}"
            )
        return bounds.starts[tp] if mode.start == "earliest" else bounds.stable[tp]

    def _check_metadata(
        self, committed: Mapping[TopicPartition, CommittedOffset], *, found_any: bool
    ) -> None:
        """Refuse offsets that were committed beside another ledger, or beside one that lost its cursor."""
        group = self.spec.group_id
        for tp, offset in committed.items():
            ledger = keys.metadata_ledger(offset.metadata)
            if ledger == self.ledger.topic_id and not found_any and group.endswith(".runs"):
                raise GroupOwned(
                    f"offset {offset.offset} of {tp} in group {group!r} was committed by runs of group "
                    f"{group.removesuffix('.runs')!r} that move no cursor (intervals, given ranges); give "
                    "this pipeline its own group_id"
                )
            if ledger == self.ledger.topic_id and not found_any:
                raise cursor_lost(group, tp, offset, self.spec.ledger.topic)
            if ledger not in (None, self.ledger.topic_id):
                raise LedgerReplaced(
                    f"group {group!r} committed offset {offset.offset} of {tp} beside "
                    f"ledger {ledger}; the ledger {self.spec.ledger.topic!r} (id {self.ledger.topic_id}) "
                    "knows nothing of this group: it was deleted, re-created or is another one. "
                    "Restore it, or start over with a new group_id"
                )

    def _moved(self, difference: str, advice: str) -> CursorMoved:
        """Return the error; unsigned records of the cursor, if any, take the place of the advice."""
        group = self.spec.group_id
        names = {keys.cursor_key(group), keys.cursor_key(group, keys.mapped_partition(self.spec))}
        unsigned = self.authority.unsigned(names, routing=group)
        return CursorMoved(f"{difference}: {'; '.join(unsigned) or advice}")

    def _unread_partitions(
        self, topics: Mapping[str, TopicDescription], layout: CursorRecord | None
    ) -> list[str]:
        """Return a note if partitions were added to the topic and no mapped task has read them yet."""
        mapped = keys.mapped_partition(self.spec)
        if mapped is None or layout is None or mapped.topic not in layout.partition_counts:
            return []
        before, count = layout.partition_counts[mapped.topic], topics[mapped.topic].partitions
        added = {
            keys.cursor_key(self.spec.group_id, TopicPartition(mapped.topic, number)): str(number)
            for number in range(before, count)
            if number != mapped.partition
        }
        read = self.authority.peek(list(added), routing=self.spec.group_id) if added else {}
        unread = [number for key, number in added.items() if key not in read]
        if not unread:
            return []
        note = (
            f"{mapped.topic} has {count} partitions, {before} when this cursor began; no mapped task has "
            f"read partition {', '.join(unread)}: expand source_partition over all of them"
        )
        return [note]


def cursor_lost(group: str, tp: TopicPartition, offset: CommittedOffset, ledger: str) -> LedgerReplaced:
    """Return the error of offsets committed beside this ledger, which has no cursor of the group."""
    return LedgerReplaced(
        f"group {group!r} committed offset {offset.offset} of {tp} beside this ledger, {ledger!r}, which has "
        "no cursor of the group any more: its record was dismissed or is lost. Restore "
        "the ledger; where the record was dismissed, choose a start with `airflow eos reset-offsets`, such "
        "as --to committed"
    )
