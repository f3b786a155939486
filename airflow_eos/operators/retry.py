"""A retry policy for tasks that commit in Kafka."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Any

from airflow_eos.compat import AirflowFailException
from airflow_eos.compat.retry_policy import RetryDecision, RetryPolicy
from airflow_eos.exceptions import IntervalNotReady, NotYetVisible, ProcessFailed, RunFenced
from airflow_eos.model.kinds import duration
from airflow_eos.model.ranges import utc_now
from airflow_eos.operators.author_signals import asked_of_airflow
from airflow_eos.operators.retriable import Retry, retry_after

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ledger.records.run_record import RunRecord

log = logging.getLogger(__name__)


class TransactionRetryPolicy(RetryPolicy):
    """Retry what may pass, fail what stays, and back off from a newer attempt.

    =====================================  ==================================================================
    the try ended with                     decision
    =====================================  ==================================================================
    authorisation, plan and configuration  fail: the next try would meet the same
    errors that stay until somebody acts
    ``RunFenced``, ``OutcomeUnknown``      ask the ledger: committed -> retry at once, it succeeds from the
                                           record; not (yet) -> retry with back-off, so that the newer
                                           attempt can finish: fenced, as long as this try took
    ``NotYetVisible``                      retry with back-off: it is committed, a retry waits for leaders
    a record that the sink's settings      fail: they would refuse it again
    refuse (``RecordRefused``)
    ``IntervalNotReady``, the last retry   retry, not before ``allowed_lateness`` is over
    of an idle partition
    ``AirflowFailException`` in process    fail
    anything else                          the task's own ``retries`` and ``retry_delay``
    =====================================  ==================================================================

    Being fenced is never final: the newer attempt may die before it commits. A retry still counts against the
    task's ``retries``. Give it as ``retry_policy`` to any task; the operators of this package have it.

    :param base_delay: back-off before the second try; doubled for each further one.
    :param max_delay: upper bound of the back-off.
    """

    def __init__(
        self,
        base_delay: dt.timedelta = dt.timedelta(seconds=5),
        max_delay: dt.timedelta = dt.timedelta(minutes=5),
    ) -> None:
        for name, value in {"base_delay": base_delay, "max_delay": max_delay}.items():
            duration().check(f"TransactionRetryPolicy({name}=...)", value)
        self.base_delay = base_delay
        self.max_delay = max_delay

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide about a failed try; runs in the task's process."""
        retry = retry_after(type(exception))
        if retry is Retry.NEVER:
            return RetryDecision.fail(f"{type(exception).__name__}: another try would meet the same")
        if isinstance(exception, ProcessFailed) and isinstance(
            asked_of_airflow(exception), AirflowFailException
        ):
            return RetryDecision.fail("process raised AirflowFailException")
        if isinstance(exception, NotYetVisible):
            return RetryDecision.retry(
                self.delay(try_number), "committed, not yet visible: a retry waits for it and writes nothing"
            )
        if isinstance(exception, IntervalNotReady) and exception.until and try_number >= max_tries:
            left = exception.until - utc_now()
            if context is not None and left > context["task"].retry_delay:
                return RetryDecision.retry(left, "interval and wait for idle partitions are over then")
        if retry is not Retry.BACK_OFF:
            return RetryDecision.default()
        if _committed(context) is not None:
            return RetryDecision.retry(dt.timedelta(0), "committed by another attempt; a retry returns it")
        delay = self.delay(try_number)
        if not isinstance(exception, RunFenced):
            return RetryDecision.retry(delay, f"{type(exception).__name__}: a retry asks again")
        began = getattr(context.get("ti"), "start_date", None) if context else None
        if began:
            # An earlier retry would fence the newer attempt, which may take as long as this one did.
            delay = min(max(delay, utc_now() - began), self.max_delay)
        return RetryDecision.retry(delay, "RunFenced: a newer attempt may own the work")

    def delay(self, try_number: int) -> dt.timedelta:
        """Return the back-off after the given try, from 1."""
        return min(self.base_delay * 2 ** min(max(0, try_number - 1), 20), self.max_delay)

    def serialize(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "base_delay": self.base_delay.total_seconds(),
            "max_delay": self.max_delay.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TransactionRetryPolicy:
        """Read the JSON form."""
        return cls(dt.timedelta(seconds=data["base_delay"]), dt.timedelta(seconds=data["max_delay"]))


def _committed(context: Context | None) -> RunRecord | None:
    """Return the run's record; None if it is not committed yet, or the ledger does not answer."""
    task: Any = None if context is None else context.get("task")
    if context is None or not hasattr(task, "build_spec"):
        return None
    try:
        from airflow_eos.engine import find_committed

        return find_committed(task.build_spec(context))
    except Exception:  # the decision must not fail: the retry asks the ledger itself
        log.warning("the ledger could not be asked; retrying with back-off", exc_info=True)
        return None
