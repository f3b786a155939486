"""A run that stops at points; used only in the driver process of a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_eos.engine import RunAttempt
from airflow_eos_testing.faults.points import COMMITTING

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import ProducerSession, Transactions
    from airflow_eos.run.collaborators import Collaborators

Hold = Callable[[str], None]


class HeldRun(RunAttempt):
    """A :class:`~airflow_eos.engine.RunAttempt` that calls ``hold`` with the name of every point it reaches.

    :param hold: called with the point's name; may block for any time.
    """

    def __init__(self, spark: Any, spec: RunSpec, process: Callable[..., Any], hold: Hold) -> None:
        super().__init__(spark, spec, process, on_state=lambda state: hold(state.value))
        self._hold = hold

    def _attempt(
        self, spec: RunSpec, collaborators: Collaborators
    ) -> tuple[RunRecord, ProducerIdentity | None]:
        held = _HeldTransactions(collaborators.transactions, self._hold)
        return super()._attempt(spec, replace(collaborators, transactions=held))


class _HeldTransactions:
    """Transactions whose sessions report COMMITTING after a commit; all else passes through."""

    def __init__(self, inner: Transactions, hold: Hold) -> None:
        self._inner = inner
        self._hold = hold
        self.abort = inner.abort
        self.abort_again = inner.abort_again
        self.write_markers = inner.write_markers

    def fence(self, transactional_id: str) -> ProducerSession:
        session: ProducerSession = _HeldSession(self._inner.fence(transactional_id), self._hold)
        return session


class _HeldSession:
    """One session; everything but the commit passes through."""

    def __init__(self, inner: ProducerSession, hold: Hold) -> None:
        self._inner = inner
        self._hold = hold
        self.begin = inner.begin
        self.add_partitions = inner.add_partitions
        self.stage = inner.stage
        self.close = inner.close

    @property
    def identity(self) -> ProducerIdentity:
        return self._inner.identity

    def commit(self) -> None:
        self._inner.commit()
        self._hold(COMMITTING)
