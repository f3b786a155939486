"""The operator: one exactly-once read-process-write run as an Airflow task."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator

from airflow_eos.compat import repeat_time_out
from airflow_eos.compat.retry_policy import asks_retry_policy
from airflow_eos.exceptions import EosError, OutcomeUnknown, RunAlreadyCommitted, RunFenced
from airflow_eos.operators.last_answer import outcome
from airflow_eos.operators.process_function import Process, load_process, ship_by_value
from airflow_eos.operators.process_signature import check_call, signature_of
from airflow_eos.operators.run_parameters import RunParameters
from airflow_eos.operators.spark_encryption import check_encryption
from airflow_eos.operators.spark_session import TaskSession, spark_settings
from airflow_eos.operators.telemetry import RunTelemetry
from airflow_eos.wire.client_config import ClientConfig

if TYPE_CHECKING:
    import datetime as dt

    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from airflow_eos.compat.retry_policy import RetryPolicy
    from airflow_eos.engine import RunAttempt
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.sink_table import SinkTable
    from airflow_eos.model.spec import Compression, LedgerSettings, MarkOutput, OnCommitted, RunSpec
    from airflow_eos.operators.partition_interval import PartitionDuration
    from airflow_eos.operators.rendered import GivenRanges
    from airflow_eos.operators.run_parameters import OnEmpty
    from airflow_eos.operators.task_identity import Ranges


class ReadProcessWriteOperator(RunParameters, PySparkOperator):
    """Read a Kafka offset range with PySpark, transform it, and commit output and offsets exactly once.

    **Guarantee:** the output, the consumed offsets and a run record become visible in one Kafka transaction,
    or not at all, whatever happens to the task: retried, killed, cleared, started twice. Downstream consumers
    must read with ``isolation.level=read_committed``.

    **How it works:** all Spark tasks write under one producer identity that fences every older attempt of the
    same work. The record in the ledger topic, committed with the data, is the only answer to "is this run
    done?". It is asked before Spark starts: a task that is cleared after its commit succeeds in about a
    second and returns what the record says. It is never skipped in Airflow's sense, so downstream tasks run.

    **What it does not do:** writes of ``process`` to anything but the returned DataFrame are not covered, and
    source and sink are one Kafka cluster, or the sink is a table (``sink``), which becomes visible before the
    offsets and the run's record.

    **Failures:** wrong configuration, missing permissions, a moved cursor, deleted offsets, a re-created
    topic and the like fail the task at once, since another try would meet the same. Everything else retries:
    give the task ``retries``. :class:`~airflow_eos.operators.retry.TransactionRetryPolicy` decides, unless
    another ``retry_policy`` is given.

    Example::

        ReadProcessWriteOperator(
            task_id="classify",
            process="../spark_apps/flights.py:process",
            topics=["flights"],
            sink_topic="flights-classified",
            group_id="flights-classifier",
            retries=2,
        )

    :param process: ``process(df)`` or ``process(df, run)``, returns the DataFrame to write: ``value``
        (required), ``key``, ``topic``, ``partition``, ``headers``, ``timestamp``, as Spark's Kafka sink. A
        function, ``"package.module:function"`` or ``"path/to/file.py:function"`` relative to the Dag file.
    :param conn_id: Spark connection: ``spark_connect``, or a master's host and port; None runs Spark in the
        task's process. (templated)
    :param config_kwargs: Spark settings; they win over the connection. (templated)
    :param op_kwargs: keyword arguments bound to ``process``. (templated)
    :param kwargs: see :class:`~airflow_eos.operators.run_parameters.RunParameters` (``topics``, ``group_id``,
        ``sink_topic``, ``ranges``, ``on_committed``, ...) and Airflow's operators.
    """

    template_fields: Sequence[str] = (*RunParameters.run_fields, *PySparkOperator.template_fields)
    ui_color = "#f4e3ff"

    if TYPE_CHECKING:
        process: Process | str
        _run: RunAttempt | None
        _killed: bool

        # For editors and type checkers; at run time each class takes its own parameters.
        def __init__(
            self,
            *,
            process: Process | str,
            topics: Sequence[str] | str,
            group_id: str,
            sink_topic: str | None = None,
            sink: SinkTable | None = None,
            dead_letter_topic: str | None = None,
            max_dead_letters: int = 100,
            allow_loop: bool = False,
            kafka_config_id: str = "kafka_default",
            ranges: Ranges | None = None,
            allowed_lateness: dt.timedelta = ...,
            partition_duration: PartitionDuration | None = None,
            accept_deleted: bool | str = False,
            skip_offsets: GivenRanges = (),
            pipeline: str | None = None,
            prefix: str | None = None,
            source_partition: int | str | None = None,
            on_committed: OnCommitted = "skip",
            mark_output: MarkOutput = "never",
            on_empty: OnEmpty = "succeed",
            transaction_timeout: dt.timedelta = ...,
            delivery_timeout: dt.timedelta = ...,
            max_send_attempts: int = 3,
            compression: Compression = "zstd",
            ledger: LedgerSettings | None = None,
            max_active_tis_per_dag: int | None = ...,
            retry_policy: RetryPolicy | None = ...,
            conn_id: str | None = None,
            config_kwargs: Mapping[str, Any] | None = None,
            op_kwargs: Mapping[str, Any] | None = None,
            **kwargs: Any,
        ) -> None: ...

    else:

        def __init__(
            self,
            *,
            process: Process | str,
            conn_id: str | None = None,
            config_kwargs: Mapping[str, Any] | None = None,
            op_kwargs: Mapping[str, Any] | None = None,
            **kwargs: Any,
        ) -> None:
            self.process = process
            super().__init__(
                python_callable=_unused,
                conn_id=conn_id,
                config_kwargs=config_kwargs,
                op_kwargs=op_kwargs,
                **kwargs,
            )
            self._run = None
            self._killed = False

    @asks_retry_policy
    def execute(self, context: Context) -> dict[str, Any]:
        """Run, or find the run in the ledger; return :meth:`RunRecord.summary` for XCom.

        :raises EosError: the run did not commit; the retry policy says whether another try may help.
        :raises AirflowSkipException: nothing was read, and ``on_empty`` is ``skip``; or ``process`` said so.
        :raises AirflowFailException: ``process`` raised it.
        """
        repeat_time_out()
        return self.finish(context, self._execute(context))

    def on_kill(self) -> None:
        """Abort this attempt's transaction under its own producer identity, and cancel its Spark job.

        See :meth:`Run.kill`. It never calls InitProducerId, which would fence a newer attempt and abort its
        transaction. Airflow goes on with the task when this returns, so a run that has not begun must not.
        """
        self._killed = True
        if self._run is not None:
            self._run.kill()

    def _execute(self, context: Context) -> RunRecord:
        spec = self.build_spec(context)
        process = self.prepared_process(context)
        config = spark_settings(self.conn_id, f"{self.dag_id}-{self.task_id}", self.config_kwargs)
        session = TaskSession(config)

        def start_spark(plan: RunPlan) -> SparkSession:
            ship_by_value(process)
            spark = session.start(plan.offsets, rows=not is_arrow_process(process))
            # Before any secret is sent, but with the session: spark-defaults.conf or a server may set these.
            check_encryption(settings_in_force(spark, config), ClientConfig.of(spec.kafka), sink=spec.sink)
            return spark

        from airflow_eos.engine import RunAttempt
        from airflow_eos.spark.encryption import settings_in_force
        from airflow_eos.spark.process import is_arrow_process

        telemetry = RunTelemetry(context)
        try:
            with telemetry.counting_failure():
                self._run = RunAttempt(start_spark, spec, process, on_state=telemetry.entered)
                if self._killed:
                    self._run.kill()
                record = self._execute_or_find(self._run, spec, telemetry)
            telemetry.answered(record)
            return record
        finally:
            session.stop()

    def _execute_or_find(self, run: RunAttempt, spec: RunSpec, telemetry: RunTelemetry) -> RunRecord:
        """Execute the run; if its outcome is unclear, ask the ledger: this may be the last try."""
        try:
            return run.execute()
        except (RunFenced, OutcomeUnknown) as error:
            try:
                record = outcome(spec)
            except RunAlreadyCommitted:
                raise
            except EosError as unanswered:
                self.log.warning("The ledger could not be asked for the outcome of the run: %s", unanswered)
                record = None
            if record is None:
                raise
            telemetry.failed(error)
            self.log.warning("The run is committed, although this attempt ended with: %s", error)
            return record

    def prepared_process(self, context: Context) -> Process:
        """Return the author's function with its rendered arguments; raises ConfigurationError."""
        process = load_process(self.process, relative_to=Path(context["dag"].fileloc).parent)
        arguments = self.process_arguments(context)
        signature = signature_of(process, ())
        if signature is not None:
            check_call(signature, arguments)
        return functools.partial(process, **arguments) if arguments else process

    def process_arguments(self, context: Context) -> Mapping[str, Any]:  # noqa: ARG002 - for subclasses
        """Return the arguments that are bound to the author's function."""
        return self.op_kwargs


def _unused(**_: Mapping[str, Any]) -> None:
    """Placeholder for ``python_callable``: here the session starts later than in the parent class."""
