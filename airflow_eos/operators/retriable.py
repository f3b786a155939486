"""Which failures are worth another try."""

from __future__ import annotations

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokerUnsupported,
    ConfigurationError,
    CursorMoved,
    EnvironmentMismatch,
    EosError,
    GroupOwned,
    IntervalUnaccountable,
    LedgerPruned,
    LedgerReplaced,
    LedgerTampered,
    LedgerTruncated,
    NoStartingPoint,
    OffsetsOutOfRange,
    OutputLost,
    RecordRefused,
    RunAlreadyCommitted,
    TopicRecreated,
)

FINAL: tuple[type[EosError], ...] = (
    AuthorizationFailed,
    BrokerUnsupported,
    ConfigurationError,
    CursorMoved,
    GroupOwned,
    IntervalUnaccountable,
    LedgerPruned,
    LedgerReplaced,
    LedgerTampered,
    LedgerTruncated,
    NoStartingPoint,
    OffsetsOutOfRange,
    OutputLost,
    RecordRefused,
    RunAlreadyCommitted,
    TopicRecreated,
)
"""Errors that stay the same until somebody acts: the same call again meets the same state.

Everything else retries. :class:`~airflow_eos.exceptions.RunFenced` above all: a newer attempt owned the work
when the authority was asked last, and it may die before it commits. The next try asks again. Topics, ledger
and group may be on their way (``UnknownTopic``, ``LedgerMissing``, ``GroupNotEmpty``, ``IntervalNotReady``).
"""

_PASSING: tuple[type[EosError], ...] = (EnvironmentMismatch,)
"""Exceptions to the list: executors come and go, and the next try may get others."""


def is_final(error: BaseException) -> bool:
    """Whether another try of the task cannot help."""
    return isinstance(error, FINAL) and not isinstance(error, _PASSING)
