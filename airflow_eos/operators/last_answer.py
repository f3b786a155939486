"""Asks the ledger for the outcome of a run that this task tried or submitted without an answer."""

from __future__ import annotations

import logging
import time

from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import RunSpec

log = logging.getLogger(__name__)

ASK_SECONDS = 300.0
"""A restart of brokers is over by then; on its last try a task would otherwise forget a commit."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


def outcome(spec: RunSpec) -> RunRecord | None:
    """Return the record to answer with; None: not committed, as far as that is known without a fence.

    Asks unreachable brokers again for :data:`ASK_SECONDS`. Waits for a record whose transaction is being
    ended, because the attempt that wrote it may have died there.

    :raises RunAlreadyCommitted: ``on_committed`` is ``fail`` and another run committed it.
    :raises OutcomeUnknown: such a transaction stays open.
    :raises BrokersUnavailable: they stayed away.
    """
    from airflow_eos.engine import answer

    deadline, pause = time.monotonic() + ASK_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return answer(spec, wait=True)
        except BrokersUnavailable as error:
            if time.monotonic() + pause > deadline:
                raise
            log.warning("Asking the ledger again in %.0f s: %s", pause, error)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
