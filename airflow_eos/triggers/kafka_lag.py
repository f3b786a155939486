"""Fires when a consumer group has unread records."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_eos.model.ranges import utc_now
from airflow_eos.triggers.condition import ConditionTrigger

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaLagTrigger(ConditionTrigger):
    """Fire when enough offsets lie between a group's position and the last stable offset.

    With ``start="latest"`` a partition without a position is enough: nothing counts as unread there until a
    run has fixed the position, and that run waits for this trigger. Other parameters are the sensor's.

    :param any_after: ISO time from which a single record is enough; None: never.
    :param ledger_topic: ledger that has the cursor if committed offsets have expired.
    """

    topics: Sequence[str]
    group_id: str
    min_records: int = 1
    any_after: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    ledger_topic: str

    def ask(self, kafka: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return ``{"group_id", "lag", "ranges"}`` once the lag is large enough."""
        from airflow_eos import settings
        from airflow_eos.engine.lag import unread

        ledger = settings.ledger_to_ask(self.ledger_topic)
        group_unread = unread(kafka, self.group_id, self.topics, start=self.start, ledger=ledger)
        enough = self.min_records
        if self.any_after is not None and utc_now() >= dt.datetime.fromisoformat(self.any_after):
            enough = 1
        log.info(
            "Group %s has %d offsets to read, waiting for %d", self.group_id, group_unread.offsets, enough
        )
        if self.start == "latest" and group_unread.without_position:
            log.info(
                "Group %s has no position in %d partitions: its next run fixes it",
                self.group_id,
                len(group_unread.without_position),
            )
        elif group_unread.offsets < enough:
            return None
        ranges = [offsets.to_list() for offsets in group_unread.ranges if offsets.span]
        return {"group_id": self.group_id, "lag": group_unread.offsets, "ranges": ranges}
