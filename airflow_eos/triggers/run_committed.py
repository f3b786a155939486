"""Fires when a run is committed, according to the ledger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.exceptions import LedgerMissing
from airflow_eos.triggers.condition import ConditionTrigger

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class RunCommittedTrigger(ConditionTrigger):
    """Fire when the ledger holds a run.

    A record in the ledger is final, even if the other Dag's task fails afterwards; without one it asks again.

    :param work: known properties of the run, see :func:`~airflow_eos.engine.committed.find_committed_by_key`.
    """

    pipeline: str
    run_key: str
    ledger_topic: str
    prefix: str
    work: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, kafka: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record's summary once the run is committed."""
        from airflow_eos import settings
        from airflow_eos.engine.committed import find_committed_by_key
        from airflow_eos.model.spec import Deployment

        deployment = Deployment(kafka, settings.ledger_to_ask(self.ledger_topic), self.prefix)
        try:
            record = find_committed_by_key(
                deployment, pipeline=self.pipeline, run_key=self.run_key, work=self.work
            )
        except LedgerMissing as error:
            log.info("Not committed yet: %s", error)  # the very first run creates the ledger
            return None
        if record is None:
            log.info("%s is not committed yet", self.run_key)
            return None
        return record.summary()
