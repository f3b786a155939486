"""Checks that the tasks mapped over the partitions of a topic cover it."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import RunSpec


def notes(
    spec: RunSpec,
    authority: Authority,
    topics: Mapping[str, TopicDescription],
    layout: CursorRecord | None,
) -> list[str]:
    """Return a note if partitions were added to the topic and no mapped task has read them yet.

    :param layout: the partition counts when the cursor began; None if it begins now.
    """
    only = keys.mapped_partition(spec)
    if only is None or layout is None or only.topic not in layout.partition_counts:
        return []
    before, count = layout.partition_counts[only.topic], topics[only.topic].partitions
    added = {
        keys.cursor_key(spec.group_id, TopicPartition(only.topic, number)): str(number)
        for number in range(before, count)
        if number != only.partition
    }
    read = authority.peek(list(added), routing=spec.group_id) if added else {}
    unread = [number for key, number in added.items() if key not in read]
    if not unread:
        return []
    note = (
        f"{only.topic} has {count} partitions, {before} when this cursor began; no mapped task has read "
        f"partition {', '.join(unread)}: expand source_partition over all of them"
    )
    return [note]
