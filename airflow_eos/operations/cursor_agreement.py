"""Whether a cursor, its group's committed offsets and its topics agree: a run refuses what does not."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_eos.exceptions import LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ranges import TopicPartition


def check_ledger(
    group: str, committed: Mapping[TopicPartition, CommittedOffset], topic: str, topic_id: str
) -> None:
    """Check that no offset of a group was committed beside another ledger.

    :param topic: of the ledger in use.
    :raises LedgerReplaced: names the other ledger.
    """
    for tp, offset in sorted(committed.items()):
        other = keys.metadata_ledger(offset.metadata)
        if other not in (None, topic_id):
            raise LedgerReplaced(
                f"group {group!r} committed offset {offset.offset} of {tp} beside ledger {other}; the ledger "
                f"{topic!r} (id {topic_id}) is another one: name the ledger of this group, restore it, or "
                "start over with a new group_id"
            )
