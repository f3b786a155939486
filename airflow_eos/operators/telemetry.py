"""Sends Airflow metrics of a run, and one OpenTelemetry span for each state."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import EosError, RunFenced
from airflow_eos.operators.author_signals import asked_of_airflow
from airflow_eos.operators.task_identity import clear_number

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.run.states import State

log = logging.getLogger(__name__)

_LOST_ANSWER = "UNKNOWN"


class RunTelemetry:
    """Metrics and spans of one try of a task: those of ``docs/observing.md``.

    Errors here never fail a run. A run that a try only finds in the ledger is not counted; a submitted run is
    counted when its end is seen.
    """

    def __init__(self, context: Context) -> None:
        instance: Any = context["ti"]
        task: Any = context["task"]
        self._tags = dict(
            getattr(instance, "stats_tags", None) or {"dag_id": task.dag_id, "task_id": task.task_id}
        )
        self._me = (context["run_id"], clear_number(context), instance.try_number)
        self._started = time.monotonic()
        self._last_ns = time.time_ns()
        self._lost_answer = False

    def entered(self, state: State) -> None:
        """End the span of the step that led into ``state``; give it to :class:`airflow_eos.engine.Run`."""
        now = time.time_ns()
        self._lost_answer |= state.value == _LOST_ANSWER
        try:
            from opentelemetry import trace

            tracer = trace.get_tracer("airflow_eos")
            span = tracer.start_span(
                f"eos.run.{state.value.lower()}", start_time=self._last_ns, attributes=self._tags
            )
            span.end(end_time=now)
        except Exception:
            log.debug("no span for %s", state, exc_info=True)
        self._last_ns = now

    def answered(self, record: RunRecord) -> None:
        """Count the commit of a run of this process, even if the response to the commit was lost.

        After a lost response, the record of our own commit comes from the ledger.
        """
        is_own_try = (record.run_id, record.clear_number, record.try_number) == self._me
        if not record.found or (self._lost_answer and is_own_try):
            self.committed(record)
        if self._lost_answer:
            with _sending() as stats:
                stats.incr("eos.run.resolved", tags=self._tags)

    def committed(self, record: RunRecord, *, elsewhere: bool = False) -> None:
        """Count a committed run.

        :param elsewhere: another process committed it: its duration is only in its record.
        """
        from airflow_eos.ledger.keys import utc_moment

        with _sending() as stats:
            seconds = time.monotonic() - self._started
            if elsewhere:
                seconds = (utc_moment(record.staged_at) - utc_moment(record.started_at)).total_seconds()
            stats.timing("eos.run.duration", seconds * 1000, tags=self._tags)
            stats.incr("eos.run.records_read", max(0, record.records_read), tags=self._tags)
            if record.records_late > 0:
                stats.incr("eos.run.records_late", record.records_late, tags=self._tags)
            stats.incr("eos.run.records_written", record.records_written, tags=self._tags)
            if record.dead_letters:
                stats.incr("eos.run.dead_letters", record.dead_letters, tags=self._tags)
            lag = record.details.get("lag")
            if lag is not None:
                stats.gauge("eos.run.lag", lag, tags=self._tags)
                stats.gauge("eos.run.undecided", record.details.get("undecided", 0), tags=self._tags)

    @contextmanager
    def counting_failure(self) -> Iterator[None]:
        """Count a try that fails; raise the Airflow exception that its ``process`` raised, if any."""
        try:
            yield
        except EosError as error:
            self.failed(error)
            signal_error = asked_of_airflow(error)
            if signal_error is not None:
                raise signal_error from None
            raise

    def failed(self, error: BaseException) -> None:
        """Count a try that did not commit."""
        if isinstance(error, RunFenced):
            with _sending() as stats:
                stats.incr("eos.run.fenced", tags=self._tags)


@contextmanager
def _sending() -> Iterator[Any]:
    """Provide Airflow's metrics; an error is only logged."""
    from airflow_eos.compat import stats

    try:
        yield stats
    except Exception:
        log.warning("metrics of the run could not be sent", exc_info=True)
