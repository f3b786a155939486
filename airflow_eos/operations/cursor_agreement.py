"""Checks that a cursor, its group's committed offsets and its topics agree; a run refuses differences."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import CursorMoved, EosError, LedgerReplaced, OffsetsOutOfRange
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.run_record import TOPIC_IDS, RunRecord
from airflow_eos.model.kafka import OFFSETS_TOPIC, CommittedOffset, TopicDescription, no_leader
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run import laws
from airflow_eos.run.log_coverage import rewritten_from
from airflow_eos.wire.groups import offsets_partition_of

_PAUSE = 0.5
"""Seconds between two reads: a run's commit becomes visible in ledger and offsets at different times."""


def topics_read(control: ControlPlane, cursor: CursorRecord) -> Collection[str]:
    """Return the topics that a cursor's last run read; after a reset, all topics of the cursor.

    A cursor keeps topics that runs no longer read, and that may no longer exist.
    """
    every = cursor.topic_ids.keys()
    if len(every) == 1:
        return every
    run = control.authority.record(RunRecord, keys.run_record_key(cursor.run_key), routing=cursor.pipeline)
    read = {} if run is None else run.details.get(TOPIC_IDS, {})
    return every & read.keys() or every


def offsets_without_leader(control: ControlPlane, *groups: str) -> str:
    """Return the partitions of groups' offsets that have no leader, as one text; empty if there are none.

    Such a group has no coordinator: each request about it would wait for a minute.
    """
    topic = control.cluster.describe_topics((), optional=[OFFSETS_TOPIC]).get(OFFSETS_TOPIC)
    if topic is None:
        return ""
    partitions = {offsets_partition_of(group, topic.partitions) for group in groups}
    return no_leader(partitions.intersection(topic.without_leader))


def check_ledger(
    group: str, committed: Mapping[TopicPartition, CommittedOffset], topic: str, topic_id: str
) -> None:
    """Check that no offset of a group was committed with another ledger.

    :param topic: topic of the ledger in use.
    :param topic_id: id of that topic; empty if it does not exist.
    :raises LedgerReplaced: names the other ledger.
    """
    for tp, offset in sorted(committed.items()):
        other = keys.metadata_ledger(offset.metadata)
        if other not in (None, topic_id):
            raise LedgerReplaced(
                f"group {group!r} committed offset {offset.offset} of {tp} beside ledger {other}; the ledger "
                f"{topic!r} (id {topic_id or 'none'}) is another one: name the ledger of this group, restore "
                "it, or start over with a new group_id, which MirrorMaker does not copy (groups.exclude)"
            )


@dataclass(frozen=True, slots=True)
class MovedPosition:
    """A position at which a run of a cursor would be refused.

    :param error: class of the error that the run would raise.
    :param offset: where the log continues, if not at the position; None if group and ledger differ.
    """

    tp: TopicPartition
    text: str
    error: type[EosError] = CursorMoved
    offset: int | None = None


def moved_positions(
    control: ControlPlane, cursor: CursorRecord, topics: Mapping[str, TopicDescription]
) -> list[MovedPosition]:
    """Return the positions at which a run of a cursor would be refused; empty if there are none.

    :param topics: current descriptions of the cursor's topics that runs read.
    :raises TopicRecreated: a topic is not the one that the cursor has read.
    :raises LedgerReplaced: offsets were committed with another ledger.
    """
    partitions = [tp for name in sorted(topics) for tp in topics[name].topic_partitions]

    def differences() -> list[MovedPosition]:
        records = _records(control, cursor, partitions)
        for record in records:
            laws.topics_unchanged(record.topic_ids, topics, advances=True)
        ends = {tp: end for record in records for tp, end in record.ends.items() if tp.topic in topics}
        committed = control.cluster.committed(cursor.group, list(ends), stable=False)
        check_ledger(cursor.group, committed, control.ledger.topic, cursor.ledger_topic_id)
        bounds = control.cluster.log_bounds(list(ends), ends=False)
        epochs = {tp: epoch for record in records for tp, epoch in record.epochs.items()}
        rewritten = rewritten_from(control.cluster, ends, epochs, bounds.epochs)
        moved = []
        for tp, end in sorted(ends.items()):
            start, stable = bounds.starts[tp], bounds.stable[tp]
            if tp in committed and committed[tp].offset != end:
                moved.append(MovedPosition(tp, f"{tp}: committed {committed[tp].offset}, cursor {end}"))
            elif end > stable:
                text = f"{tp}: cursor {end}, beyond the last stable offset {stable}"
                moved.append(MovedPosition(tp, text, offset=stable))
            elif end < start:
                text = f"{tp}: cursor {end}, the log starts at {start}: the records between were deleted"
                moved.append(MovedPosition(tp, text, OffsetsOutOfRange, start))
            elif tp in rewritten:
                text = f"{tp}: cursor {end}, the log was rewritten from {rewritten[tp]} on"
                moved.append(MovedPosition(tp, text, OffsetsOutOfRange, rewritten[tp]))
        return moved

    moved = differences()
    if not moved:
        return []
    time.sleep(_PAUSE)
    still = differences()
    return [difference for difference in moved if difference in still]


def _records(
    control: ControlPlane, cursor: CursorRecord, partitions: Collection[TopicPartition]
) -> list[CursorRecord]:
    """Return the current records of a cursor: one, or the group's and those of mapped partitions."""
    mapped = partitions if cursor.layout == "mapped" else ()
    wanted = [keys.cursor_key(cursor.group), *(keys.cursor_key(cursor.group, tp) for tp in mapped)]
    values = control.authority.peek(wanted, routing=cursor.group)
    return [CursorRecord.from_json(value, key) for key, value in values.items()]
