"""Asks the ledger for the outcome of a run that this task tried or submitted without getting its result."""

from __future__ import annotations

import logging
import time

from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import RunSpec

log = logging.getLogger(__name__)

ASK_SECONDS = 300.0
"""Time limit: enough for a restart of the brokers; otherwise a task's last try would miss its own commit."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


def outcome(spec: RunSpec) -> RunRecord | None:
    """Return the run's record; None if it is not committed, as far as can be known without fencing.

    Retries unreachable brokers for :data:`ASK_SECONDS`. Waits for a record whose transaction is being
    completed, because the attempt that wrote it may have died at that point.

    :raises RunAlreadyCommitted: ``on_committed`` is ``fail`` and another run committed it.
    :raises OutcomeUnknown: such a transaction stays open.
    :raises BrokersUnavailable: they did not answer in time.
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
