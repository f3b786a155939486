"""One exactly-once run on a real cluster: the entry point below Airflow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_eos.engine.catch_up import run_rounds
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import CredentialsRefused, RunFailed
from airflow_eos.ledger import keys
from airflow_eos.run.kill import KILL_SECONDS, Kill, KillBudget
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.spark.lazy_data_plane import LazyDataPlane

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.run.collaborators import Collaborators
    from airflow_eos.run.states import State

log = logging.getLogger(__name__)


class RunAttempt:
    """One attempt at one run.

    Guarantee: the output, the consumed offsets and the run record are committed together, once, or not at
    all, whatever happens to this process or to another attempt at the same work.

    Example::

        spec = RunSpec(kafka={"bootstrap.servers": "..."}, pipeline="demo", run_id="2026-11-21T05",
                       source_topics=("src",), sink_topic="out", group_id="demo")
        record = RunAttempt(spark, spec, lambda df: df.select("key", "value")).execute()

    :param spark: a session (classic or Spark Connect), or a function that creates one for a plan; it is
        called only if there is something to read.
    :param spec: what to read, where to write, and the identity of the run.
    :param process: ``process(df)`` or ``process(df, run)``, from source columns to sink columns.
    :param on_state: called when the run enters a state.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[RunPlan], SparkSession],
        spec: RunSpec,
        process: Callable[..., Any],
        *,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        self._spec = spec
        self._on_state = on_state
        self._kill = Kill()
        self._data = LazyDataPlane(spark, spec, process, self._kill.check)
        self._protocol: RunProtocol | None = None

    def execute(self) -> RunRecord:
        """Run, or return the record that the ledger already has (then ``record.found`` is true).

        :raises PlanError: nothing was read or written.
        :raises RunFenced: a newer attempt owns the work, and it is not committed yet.
        :raises RunFailed: aborted after all attempts; nothing is visible.
        :raises OutcomeUnknown: the outcome of the commit is unknown; a retry finds it out.
        """
        self._kill.check()
        with ControlPlane(self._spec) as control:
            collaborators = control.collaborators(self._data)
            self._data.cluster_id = control.link.cluster_id
            try:
                if keys.loops(self._spec):
                    record = run_rounds(self._spec, collaborators, self._attempt)
                else:
                    record, _ = self._attempt(self._spec, collaborators)
            except CredentialsRefused as error:
                raise RunFailed(
                    f"{error.message}; the credentials were accepted when this run began, so something has "
                    "changed since: a retry reads the connection again"
                ) from error
            control.remember_ledger()
            control.keep_index(collaborators.ledger_id.prefix)
        log.info(
            "run %s %s: records: %s",
            record.run_key,
            "found in the ledger" if record.found else "committed",
            record.counts,
        )
        return record

    def _attempt(
        self, spec: RunSpec, collaborators: Collaborators
    ) -> tuple[RunRecord, ProducerIdentity | None]:
        self._protocol = RunProtocol(spec, collaborators, self._on_state, self._kill)
        return self._protocol.execute(), self._protocol.producer

    def kill(self, timeout: float = KILL_SECONDS) -> None:
        """End this run: it enters no further state, and its Spark jobs and its transaction are aborted.

        After it returns, the run does not commit. If a commit is in progress, the coordinator decides which
        request came first; the commit may still succeed only if the coordinator answers neither request in
        time. It never initialises a producer, because a killed process has often been replaced already. It
        never raises, and may be called from a signal handler, before :meth:`execute`, and repeatedly; for
        ``on_kill``.

        :param timeout: seconds for the whole call.
        """
        budget = KillBudget(timeout)
        # In this thread, because the code that the signal interrupted must see it next.
        self._kill.ask()
        ends: list[Callable[[float], None]] = [self._data.cancel]
        if self._protocol is not None:
            ends.append(self._protocol.kill)
        budget.spend(*ends)


Run = RunAttempt
"""The short name, for users."""


def read_process_write(
    spark: SparkSession | Callable[[RunPlan], SparkSession], spec: RunSpec, process: Callable[..., Any]
) -> RunRecord:
    """Run ``process`` over the spec's ranges, exactly once; see :class:`RunAttempt`."""
    return RunAttempt(spark, spec, process).execute()
