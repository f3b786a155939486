"""The operator: one exactly-once read-process-write run as an Airflow task."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import DEFAULT_ALLOWED_LATENESS, Cursor
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operators import settings
from airflow_eos.operators.outlets import describe_outlets
from airflow_eos.operators.process import Process, load_process, ship_by_value, with_arguments
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.operators.session import TaskSession, spark_settings
from airflow_eos.operators.task_identity import Ranges, clear_number, resolve_ranges

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from airflow_eos.engine import Run
    from airflow_eos.model.record import RunRecord
    from airflow_eos.model.spec import Compression, OnCommitted

OnEmpty = Literal["succeed", "skip"]
_NOT_GIVEN: Any = object()  # None is a value here: no limit


class ReadProcessWriteOperator(PySparkOperator):
    """Read a Kafka offset range with PySpark, transform it, and commit output and offsets exactly once.

    **Guarantee:** the output, the consumed offsets and a run record become visible in one Kafka transaction,
    or not at all, whatever happens to the task: retried, killed, cleared, started twice. Downstream consumers
    must read with ``isolation.level=read_committed``.

    **How it works:** all Spark tasks write under one producer identity that fences every older attempt of the
    same work. The record in the ledger topic, committed with the data, is the only answer to "is this run
    done?". It is asked before Spark starts: a task that is cleared after its commit succeeds in about a
    second and returns what the record says. It is never skipped in Airflow's sense, so downstream tasks run.

    **What it does not do:** writes of ``process`` to anything but the returned DataFrame are not covered, and
    source and sink are one Kafka cluster.

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
    :param topics: topics to read. (templated)
    :param group_id: consumer group that holds the cursor. (templated)
    :param sink_topic: topic of rows without a ``topic`` column; None requires the column. (templated)
    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param conn_id: Spark connection: ``spark_connect``, or a master's host and port; None runs Spark in the
        task's process. (templated)
    :param config_kwargs: Spark settings; they win over the connection. (templated)
    :param op_kwargs: keyword arguments bound to ``process``. (templated)
    :param ranges: ``Cursor()`` continues from the group's offsets, with ``until_caught_up`` in rounds until
        it has read up to the last stable offset; ``"data_interval"`` reads the interval of the Dag run, or
        its partition where it has one; ``Interval``, ``PartitionInterval`` and ``Explicit`` as given.
    :param allowed_lateness: with ``"data_interval"``: how long an idle partition holds a boundary open.
    :param partition_duration: with ``"data_interval"`` and a partitioned Dag: length of a partition.
    :param pipeline: name of the pipeline, default ``<dag_id>.<task_id>``; set it to what it was before you
        rename a Dag or task, and it keeps its ledger. (templated)
    :param prefix: first part of transactional ids, default ``[eos] prefix``. (templated)
    :param source_partition: read this partition only; expand over it to map one task per partition, each with
        a cursor of its own. (templated)
    :param on_committed: what to do when the ledger holds the run from another Dag run or from before a clear:
        ``skip`` (succeed from the record), ``fail``, or ``reprocess`` (the recorded ranges again, without
        moving offsets). The same work found committed by an earlier try always succeeds.
    :param on_empty: when nothing was read: ``succeed``, or ``skip`` the task in Airflow's sense, after the
        commit, so that downstream tasks are skipped too.
    :param transaction_timeout: the coordinator aborts the transaction after this time.
    :param delivery_timeout: a batch not acknowledged within this time fails the attempt.
    :param max_send_attempts: how often one try sends its output, each time in a new transaction.
    :param compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    :param ledger: default: topic and creation from ``[eos]``; the topic is created only by the first try of a
        run that was never cleared.
    :param max_active_tis_per_dag: as in every operator, but 1 unless given where ``ranges`` is a ``Cursor``:
        two Dag runs on one cursor only fence each other. A mapped operator has no such default: its tasks
        have a cursor each.
    """

    template_fields: Sequence[str] = (
        "topics",
        "sink_topic",
        "group_id",
        "kafka_config_id",
        "pipeline",
        "prefix",
        "source_partition",
        *PySparkOperator.template_fields,
    )
    ui_color = "#f4e3ff"

    def __init__(
        self,
        *,
        process: Process | str,
        topics: Sequence[str] | str,
        group_id: str,
        sink_topic: str | None = None,
        kafka_config_id: str = "kafka_default",
        ranges: Ranges | None = None,
        allowed_lateness: dt.timedelta = DEFAULT_ALLOWED_LATENESS,
        partition_duration: dt.timedelta | None = None,
        pipeline: str | None = None,
        prefix: str | None = None,
        source_partition: int | str | None = None,
        on_committed: OnCommitted = "skip",
        on_empty: OnEmpty = "succeed",
        transaction_timeout: dt.timedelta = dt.timedelta(seconds=300),
        delivery_timeout: dt.timedelta = dt.timedelta(seconds=120),
        max_send_attempts: int = 3,
        compression: Compression = "zstd",
        ledger: LedgerSettings | None = None,
        max_active_tis_per_dag: int | None = _NOT_GIVEN,
        **kwargs: Any,
    ) -> None:
        if not callable(process) and not isinstance(process, str):
            raise ConfigurationError(f"process must be a function or a string, got {type(process).__name__}")
        self.ranges: Ranges = Cursor() if ranges is None else ranges
        if max_active_tis_per_dag is _NOT_GIVEN:
            max_active_tis_per_dag = 1 if isinstance(self.ranges, Cursor) else None
        if on_empty not in ("succeed", "skip"):
            raise ConfigurationError(f"on_empty must be 'succeed' or 'skip', got {on_empty!r}")
        kwargs.setdefault("retry_policy", TransactionRetryPolicy())
        super().__init__(python_callable=_unused, max_active_tis_per_dag=max_active_tis_per_dag, **kwargs)
        self.process = process
        self.topics = topics
        self.group_id = group_id
        self.sink_topic = sink_topic
        self.kafka_config_id = kafka_config_id
        self.allowed_lateness = allowed_lateness
        self.partition_duration = partition_duration
        self.pipeline = pipeline
        self.prefix = prefix
        self.source_partition = source_partition
        self.on_committed = on_committed
        self.on_empty = on_empty
        self.transaction_timeout = transaction_timeout
        self.delivery_timeout = delivery_timeout
        self.max_send_attempts = max_send_attempts
        self.compression = compression
        self.ledger = ledger
        self._run: Run | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run, or find the run in the ledger; return :meth:`RunRecord.summary` for XCom.

        :raises EosError: the run did not commit; the retry policy says whether another try may help.
        :raises AirflowSkipException: nothing was read, and ``on_empty`` is ``skip``.
        """
        record = self._execute(context)
        describe_outlets(context, record)
        summary = record.summary()
        self.log.info("%s: %s", "Found in the ledger" if record.found else "Committed", summary)
        if self.on_empty == "skip" and not record.records_read and not record.records_written:
            raise AirflowSkipException(f"{record.run_key} is committed; there was nothing to read")
        return summary

    def on_kill(self) -> None:
        """End this attempt's transaction by its own identity, and its Spark job; see :meth:`Run.kill`.

        The killed process is often the replaced one: it never initialises transactions, which would abort
        the attempt that replaced it.
        """
        if self._run is not None:
            self._run.kill()

    def _execute(self, context: Context) -> RunRecord:
        process = self.prepared_process(context)
        spec = self.build_spec(context)
        config = spark_settings(self.conn_id, f"{self.dag_id}-{self.task_id}", self.config_kwargs)
        session = TaskSession(config)

        def start_spark() -> SparkSession:
            ship_by_value(process)
            return session.start()

        from airflow_eos.engine import Run

        try:
            self._run = Run(start_spark, spec, process)
            return self._run.execute()
        finally:
            session.stop()

    def prepared_process(self, context: Context) -> Process:
        """Return the author's function with its rendered arguments.

        :raises ConfigurationError: it cannot be found or imported.
        """
        process = load_process(self.process, relative_to=Path(context["dag"].fileloc).parent)
        return with_arguments(process, self.op_kwargs)

    def build_spec(self, context: Context) -> RunSpec:
        """Return the specification of this run: the rendered fields, the connection, and who asks.

        :raises ConfigurationError: a value is refused; see :class:`~airflow_eos.model.spec.RunSpec`.
        """
        from airflow_eos.hooks.kafka_eos import KafkaEosHook

        clears, try_number = clear_number(context), context["ti"].try_number
        try:
            return RunSpec(
                kafka=KafkaEosHook(self.kafka_config_id).get_config(),
                pipeline=self.pipeline or f"{self.dag_id}.{self.task_id}",
                run_id=context["run_id"],
                source_topics=(self.topics,) if isinstance(self.topics, str) else tuple(self.topics),
                sink_topic=self.sink_topic,
                group_id=self.group_id,
                ranges=resolve_ranges(
                    self.ranges,
                    context,
                    allowed_lateness=self.allowed_lateness,
                    partition_duration=self.partition_duration,
                ),
                prefix=self.prefix or settings.default_prefix(),
                source_partition=None if self.source_partition is None else int(self.source_partition),
                audit=self.audit(context),
                clear_number=clears,
                try_number=try_number,
                on_committed=self.on_committed,
                transaction_timeout=self.transaction_timeout,
                delivery_timeout=self.delivery_timeout,
                max_send_attempts=self.max_send_attempts,
                compression=self.compression,
                ledger=self.ledger or settings.default_ledger(first_attempt=try_number == 1 and clears == 0),
            )
        except ValueError as error:  # a range or interval that cannot be
            raise ConfigurationError(str(error)) from error

    def audit(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """Return what the run record shall keep about who wants this run, and why."""
        return {}


def _unused(**_: Mapping[str, Any]) -> None:
    """Stand in for ``python_callable``: here the session starts later than in the parent class."""
