"""Fires when a data interval is over in the topics, not only by the clock."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.triggers.condition import ConditionTrigger

if TYPE_CHECKING:
    from airflow_eos.engine.lag import IdlePolicy

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaDataIntervalTrigger(ConditionTrigger):
    """Fire when every partition has passed the end of an interval; other parameters are the sensor's.

    :param start: ISO time with a zone.
    :param end: ISO time with a zone.
    :param allowed_lateness: seconds.
    :param ledger_topic: ledger with the boundaries that are already fixed.
    """

    topics: Sequence[str]
    start: str
    end: str
    allowed_lateness: float = 300.0
    idle_partitions: IdlePolicy = "allowed_lateness"
    accept_deleted: bool = False
    ledger_topic: str

    def ask(self, kafka: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return ``{"start", "end"}`` once every partition has passed the end.

        :raises IntervalUnaccountable: the log does not show what the interval holds; a run would fail, too.
        """
        from airflow_eos import settings
        from airflow_eos.engine.lag import interval_waits_for
        from airflow_eos.model.ranges import Interval

        interval = Interval(
            dt.datetime.fromisoformat(self.start),
            dt.datetime.fromisoformat(self.end),
            dt.timedelta(seconds=self.allowed_lateness),
            self.accept_deleted,
        )
        ledger = settings.ledger_to_ask(self.ledger_topic)
        waiting = interval_waits_for(kafka, self.topics, interval, idle=self.idle_partitions, ledger=ledger)
        if waiting:
            log.info("Not over yet: %s", "; ".join(waiting))
            return None
        return {"start": self.start, "end": self.end}
