"""The progress of a consumer group: its unread offsets, and what blocks its next run."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.engine.lag import Unread, unread_of
from airflow_eos.exceptions import BrokersUnavailable, EosError, LedgerReplaced, TopicRecreated, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.kafka import without_leader
from airflow_eos.model.ranges import TopicPartition, utc_now
from airflow_eos.operations.cursor_agreement import moved_positions, offsets_without_leader, topics_read
from airflow_eos.operations.open_transactions import OpenTransaction, open_ones

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Unread offsets of a group with a cursor, and the transaction of an active run.

    :param unread: None if unknown.
    :param unknown: the reason: why the next run would be refused, or an error.
    :param open_transaction: the oldest one of the cursor's transactional ids; None if none is open.
    :param is_complete: whether ``open_transaction`` is known.
    :param asked_at: reference time of all ages.
    """

    layout: str
    unread: Unread | None
    unknown: str = ""
    open_transaction: OpenTransaction | None = None
    is_complete: bool = True
    asked_at: dt.datetime = field(default_factory=utc_now)

    @property
    def oldest_open_seconds(self) -> float | None:
        """Age of the oldest open transaction, own or blocking the source; 0 without one, None if unknown."""
        if not self.is_complete:
            return None
        undecided = () if self.unread is None else self.unread.undecided
        ages = [transaction.age_seconds(self.asked_at) for transaction in undecided]
        if self.open_transaction is not None:
            ages.append(self.open_transaction.age_seconds)
        return None if None in ages else max((round(age, 1) for age in ages if age is not None), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        progress: dict[str, Any] = {"lag": None, "unknown": self.unknown}
        if self.unread is not None:
            progress = {
                "lag": self.unread.offsets,
                "lag_to_end": self.unread.offsets_to_end,
                "waiting": [undecided.to_dict(self.asked_at) for undecided in self.unread.undecided],
            }
            if self.layout == "mapped" and self.unread.added:
                progress["not_mapped"] = [str(tp) for tp in sorted(self.unread.added)]
        if self.is_complete:
            own = self.open_transaction
            progress["open_transaction"] = None if own is None else own.to_dict()
        return progress


def progress_of(control: ControlPlane, group: str, cursor: CursorRecord) -> GroupProgress:
    """Return the progress of a group with a cursor; an error of this group alone becomes its ``unknown``.

    :raises BrokersUnavailable: no broker answers.
    """
    try:
        topics = topics_read(control, cursor)
        refusal = _refusal(control, cursor, topics)
        unread = None if refusal else unread_of(control, group, sorted(topics))
        partitions: list[TopicPartition | None] = [None]
        if unread is not None and cursor.layout == "mapped":
            partitions = [offsets.topic_partition for offsets in unread.ranges]
        ids = [keys.cursor_transactional_id(cursor.prefix, group, partition) for partition in partitions]
        oldest = next(iter(open_ones(control, ids)), None)
    except BrokersUnavailable:
        raise
    except Exception as error:
        log.debug("group %s", group, exc_info=True)
        return GroupProgress(cursor.layout, None, _reason(error), is_complete=False)
    return GroupProgress(cursor.layout, unread, refusal, oldest)


def _refusal(control: ControlPlane, cursor: CursorRecord, read: Collection[str]) -> str:
    """Return why the next run of a cursor would fail; empty if no reason is visible."""
    try:
        topics = control.cluster.describe_topics(read)
        if without := without_leader(*topics.values()) or offsets_without_leader(control, cursor.group):
            return f"{BrokersUnavailable.__name__}: {without}"
        moved = moved_positions(control, cursor, topics)
    except (UnknownTopic, TopicRecreated, LedgerReplaced) as error:
        return _reason(error)
    return f"{moved[0].error.__name__}: {'; '.join(item.text for item in moved)}" if moved else ""


def _reason(error: Exception) -> str:
    message = error.message if isinstance(error, EosError) else str(error)
    return f"{type(error).__name__}: {message}"
