"""The failures that are worth another try: one table for retry policy, sensors and docs/errors.md."""

from __future__ import annotations

from enum import Enum

from airflow_eos import exceptions
from airflow_eos.exceptions import EosError

FINAL: tuple[type[EosError], ...] = (
    exceptions.AuthorizationFailed,
    exceptions.BrokerUnsupported,
    exceptions.ConfigurationError,
    exceptions.CursorMoved,
    exceptions.GroupOwned,
    exceptions.IntervalUnaccountable,
    exceptions.LedgerPruned,
    exceptions.LedgerReplaced,
    exceptions.LedgerTampered,
    exceptions.LedgerTruncated,
    exceptions.NoStartingPoint,
    exceptions.OffsetsOutOfRange,
    exceptions.OutputLost,
    exceptions.RecordRefused,
    exceptions.RunAlreadyCommitted,
    exceptions.TableRefused,
    exceptions.TableReplaced,
    exceptions.TableRewritten,
    exceptions.TopicRecreated,
    exceptions.UnsupportedMagic,
)
"""Errors that persist until somebody acts: a retry would meet the same state.

Everything else is retried, above all :class:`~airflow_eos.exceptions.RunFenced`: a newer attempt owned the
work at the last check, and it may die before it commits. The next try asks again. Topics, ledger and group
may just not be ready (``UnknownTopic``, ``LedgerMissing``, ``GroupNotEmpty``, ``IntervalNotReady``).
"""

_PASSING: tuple[type[EosError], ...] = (exceptions.EnvironmentMismatch,)
"""Retried although their base class is final: the next try may run on other executors."""

BACKED_OFF: tuple[type[EosError], ...] = (
    exceptions.NotYetVisible,
    exceptions.OutcomeUnknown,
    exceptions.RunFenced,
)
"""Errors after which another attempt or the brokers may still be working: each further try waits longer."""


class Retry(Enum):
    """The reaction of :class:`~airflow_eos.operators.retry.TransactionRetryPolicy` to an error."""

    NEVER = "not retried"
    BACK_OFF = "retried with back-off"
    AFTER_DELAY = "retried"


def retry_after(kind: type[BaseException]) -> Retry:
    """Return whether and how the task is retried after an error of this class."""
    if issubclass(kind, FINAL) and not issubclass(kind, _PASSING):
        return Retry.NEVER
    return Retry.BACK_OFF if issubclass(kind, BACKED_OFF) else Retry.AFTER_DELAY


def is_final(error: BaseException) -> bool:
    """Return whether another try of the task cannot help."""
    return retry_after(type(error)) is Retry.NEVER
