"""Open INTENTs of a ledger: rows that runs were about to publish in tables."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.versioned import JsonForm

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenIntent(JsonForm):
    """An open INTENT: its run is at work, or died. The pipeline's next run settles it.

    :param since: when it was written, by the driver's clock.
    """

    pipeline: str
    run_key: str
    table: str
    transactional_id: str
    since: str


def open_intents(values: Iterable[tuple[str, LedgerValue]]) -> tuple[OpenIntent, ...]:
    """Return the INTENTs among ledger values, the oldest first; logs and omits unreadable ones.

    :param values: pairs of key and value.
    """
    intents = []
    for key, value in values:
        if not key.startswith(keys.INTENTS):
            continue
        try:
            intent = Intent.from_json(value, key)
        except LedgerUnreadable as error:
            log.warning("left out: %s", error)
            continue
        record = intent.record
        transactional_id = key.removeprefix(keys.INTENTS)
        intents.append(
            OpenIntent(record.pipeline, intent.key, intent.sink, transactional_id, record.staged_at)
        )
    return tuple(sorted(intents, key=lambda intent: intent.since))
