"""Open INTENTs of a ledger: rows that runs were about to publish in tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.versioned import JsonForm, readable


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
    intents = [
        OpenIntent(
            intent.record.pipeline,
            intent.key,
            intent.sink,
            key.removeprefix(keys.INTENTS),
            intent.record.staged_at,
        )
        for key, intent in readable(Intent, [pair for pair in values if pair[0].startswith(keys.INTENTS)])
    ]
    return tuple(sorted(intents, key=lambda intent: intent.since))
