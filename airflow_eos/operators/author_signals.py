"""Recovers Airflow's exceptions that ``process`` raised from the error of a run that did not commit."""

from __future__ import annotations

import logging

from airflow_eos.compat import TASK_SIGNALS, AirflowFailException, AirflowSkipException
from airflow_eos.exceptions import EosError, ProcessFailed
from airflow_eos.task_signals import signal_of

log = logging.getLogger(__name__)


def asked_of_airflow(error: EosError) -> Exception | None:
    """Return the exception to raise instead of an error of the author's function; None if it is not a signal.

    An exception that ``process`` raised on the driver is returned unchanged. If it comes from an executor or
    a remote driver, only its class names are known, and a new exception is made.
    """
    if not isinstance(error, ProcessFailed):
        return None
    cause = error.__cause__
    signal = signal_of(error.raised)
    signal_error: Exception | None = None
    if isinstance(cause, TASK_SIGNALS):
        signal_error = cause
    elif signal is not None:
        signal_error = (AirflowSkipException if signal == "skip" else AirflowFailException)(error.message)
    if isinstance(signal_error, AirflowSkipException):
        log.info(
            "process asked to skip the task: nothing of this run, or of this round, is committed, its "
            "offsets stay where they were, and the ledger does not hold it. A cursor's next run reads the "
            "records again; an interval is read again when the task is cleared"
        )
    return signal_error
