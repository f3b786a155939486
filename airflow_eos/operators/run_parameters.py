"""The parameters of every operator that makes a run, and the run's specification from them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk.bases.operator import BaseOperatorMeta

from airflow_eos import settings
from airflow_eos.compat import AirflowSkipException
from airflow_eos.compat.retry_policy import arguments_of_operator
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.links.run_links import ConfiguredLinks
from airflow_eos.model.ranges import DEFAULT_ALLOWED_LATENESS, Cursor, Interval, RangeMode
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operators.literals import CheckedParameters, check_literals, check_rendered, templates_of
from airflow_eos.operators.mapped_instances import is_of_mapped_group, refuse_same_run
from airflow_eos.operators.other_task import refuse_other_task
from airflow_eos.operators.outlets import describe_outlets
from airflow_eos.operators.partition_interval import PartitionDuration
from airflow_eos.operators.rendered import GivenRanges, parse_partition, parse_ranges, parse_topics
from airflow_eos.operators.retry import TransactionRetryPolicy
from airflow_eos.operators.task_identity import (
    DATA_INTERVAL,
    Ranges,
    accepting,
    accepts,
    clear_number,
    refuse_another_grid,
    refuse_loop,
    resolve_ranges,
    task_of,
    warn_of_read_before,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.compat.retry_policy import RetryPolicy
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.sink_table import SinkTable
    from airflow_eos.model.spec import Compression, MarkOutput, OnCommitted

OnEmpty = Literal["succeed", "skip"]
_NOT_GIVEN: Any = object()  # None is a value here: no limit
_POLICY = TransactionRetryPolicy()  # as a default: Airflow passes it to mapped tasks, too


class RunParameters(CheckedParameters):
    """Parameters of a run, for operators: a mixin before the operator class.

    :param topics: one topic to read, a list, or the text of a list, as a template renders it. (templated)
    :param group_id: consumer group that holds the cursor. (templated)
    :param sink_topic: topic of rows without a ``topic`` column; None requires the column. (templated)
    :param sink: a table that the run writes to instead of topics:
        :class:`~airflow_eos.model.iceberg_table.IcebergTable`,
        :class:`~airflow_eos.model.delta_table.DeltaTable` or
        :class:`~airflow_eos.model.postgres_table.PostgresTable`.
    :param dead_letter_topic: topic of the records on which ``process`` raises; without it such a record
        fails the run. (templated)
    :param max_dead_letters: a run, or a round, with more dead letters fails.
    :param allow_loop: allow the run to write to a topic that it reads; the next run reads its output.
    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param ranges: ``Cursor()``, the default, continues from the group's offsets; ``"data_interval"`` reads
        the Dag run's interval or partition; ``Interval``, ``PartitionInterval`` and ``Explicit`` as given.
    :param allowed_lateness: with ``"data_interval"``: how long an idle partition holds a boundary open.
    :param partition_duration: with ``"data_interval"`` in a partitioned Dag whose schedule does not give the
        end of a partition. Whole days, months and years are those of the Dag's time zone.
    :param accept_deleted: read what is left of intervals and partitions whose records are, or may be,
        deleted, and record the loss. For one Dag run:
        ``"{{ dag_run.conf.get('accept_deleted', False) }}"``. (templated)
    :param skip_offsets: unreadable offsets to skip: ``[[topic, partition, start, end]]`` as the error names
        them, or its text. For one Dag run:
        ``"{{ dag_run.conf.get('skip_offsets', []) }}"``. (templated)
    :param pipeline: name of the pipeline, default ``<dag_id>.<task_id>``; keep it when you rename a Dag or
        task. (templated)
    :param prefix: first part of transactional ids, without a dot; default ``[eos] prefix``. (templated)
    :param source_partition: read only this partition; expand over it to map a task per partition, each with
        its own cursor. (templated)
    :param on_committed: what to do if another Dag run, or this one before a clear, has committed the run:
        ``skip`` (succeed from the record), ``fail``, ``reprocess`` (write the recorded ranges again,
        without moving offsets), or ``accept`` (as ``skip``, also for a record of other topics, sink, ranges).
    :param mark_output: which records get headers that name their run: those of a reprocessing or a replay
        (``reprocessed``), all (``always``), or none.
    :param on_empty: after an empty run, which commits, too: ``succeed``, or ``skip`` the task.
    :param transaction_timeout: the coordinator aborts the transaction after this time.
    :param delivery_timeout: a batch not acknowledged within this time fails the attempt.
    :param max_send_attempts: how often one try sends its output, each time in a new transaction.
    :param compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    :param ledger: default: topic and creation from ``[eos]``.
    :param max_active_tis_per_dag: by default 1 if ``ranges`` is a ``Cursor`` and neither the task nor its
        group is mapped: two Dag runs on one cursor only fence each other.
    :param retry_policy: by default a :class:`~airflow_eos.operators.retry.TransactionRetryPolicy`.
    """

    run_fields: ClassVar[Sequence[str]] = (
        "topics",
        "sink_topic",
        "dead_letter_topic",
        "group_id",
        "kafka_config_id",
        "pipeline",
        "prefix",
        "source_partition",
        "accept_deleted",
        "skip_offsets",
    )
    function_arguments: frozenset[str] = frozenset()
    """Arguments of the task's call that go to its function, although they are named like a run's."""

    operator_extra_links = ConfiguredLinks()

    if TYPE_CHECKING:
        dag_id: str
        task_id: str
        log: Any
        dag: Any
        has_dag: Callable[[], bool]

    @BaseOperatorMeta._apply_defaults  # noqa: SLF001 - as Airflow's own mixins: default_args reach these
    def __init__(
        self,
        *,
        topics: Sequence[str] | str,
        group_id: str,
        sink_topic: str | None = None,
        sink: SinkTable | None = None,
        dead_letter_topic: str | None = None,
        max_dead_letters: int = 100,
        allow_loop: bool = False,
        kafka_config_id: str = "kafka_default",
        ranges: Ranges | None = None,
        allowed_lateness: dt.timedelta = DEFAULT_ALLOWED_LATENESS,
        partition_duration: PartitionDuration | None = None,
        accept_deleted: bool | str = False,
        skip_offsets: GivenRanges = (),
        pipeline: str | None = None,
        prefix: str | None = None,
        source_partition: int | str | None = None,
        on_committed: OnCommitted = "skip",
        mark_output: MarkOutput = "never",
        on_empty: OnEmpty = "succeed",
        transaction_timeout: dt.timedelta = dt.timedelta(seconds=300),
        delivery_timeout: dt.timedelta = dt.timedelta(seconds=120),
        max_send_attempts: int = 3,
        compression: Compression = "zstd",
        ledger: LedgerSettings | None = None,
        max_active_tis_per_dag: int | None = _NOT_GIVEN,
        retry_policy: RetryPolicy | None = _POLICY,
        **kwargs: Any,
    ) -> None:
        self.ranges: Ranges = Cursor() if ranges is None else ranges
        if max_active_tis_per_dag is _NOT_GIVEN:
            has_cursor_of_its_own = is_of_mapped_group(source_partition) or is_of_mapped_group(pipeline)
            max_active_tis_per_dag = (
                1 if isinstance(self.ranges, Cursor) and not has_cursor_of_its_own else None
            )
        self.topics = topics
        self.group_id = group_id
        self.sink_topic = sink_topic
        self.sink = sink
        self.dead_letter_topic = dead_letter_topic
        self.max_dead_letters = max_dead_letters
        self.allow_loop = allow_loop
        self.kafka_config_id = kafka_config_id
        self.allowed_lateness = allowed_lateness
        self.partition_duration = partition_duration
        self.accept_deleted = accept_deleted
        self.skip_offsets = skip_offsets
        self.pipeline = pipeline
        self.prefix = prefix
        self.source_partition = source_partition
        self.on_committed = on_committed
        self.mark_output: MarkOutput = mark_output
        self.on_empty = on_empty
        self.transaction_timeout = transaction_timeout
        self.delivery_timeout = delivery_timeout
        self.max_send_attempts = max_send_attempts
        self.compression = compression
        self.ledger = ledger
        self.run_record: RunRecord | None = None
        self._run_key: str | None = None
        self._told_apart = True
        kwargs.update(max_active_tis_per_dag=max_active_tis_per_dag, retry_policy=retry_policy)
        given = {**vars(self), **kwargs}
        self._templates = templates_of(type(self), given)
        check_literals(type(self), given)  # before the Dag knows the task
        super().__init__(**arguments_of_operator(self, kwargs))
        if self.has_dag():
            check_literals(type(self), {**given, "dag": self.dag, "task_id": self.task_id}, with_dag=True)

    def build_spec(self, context: Context) -> RunSpec:
        """Return the specification of this run from the rendered fields, the connection and the context.

        :raises ConfigurationError: a value is refused; see :class:`~airflow_eos.model.spec.RunSpec`.
        """
        from airflow_eos.hooks.kafka_eos import KafkaEosHook
        from airflow_eos.hooks.table_connections import with_connection

        refuse_loop(context)
        self._told_apart = refuse_same_run(self, context, self._templates)
        check_rendered(self, self._templates)
        clears, try_number = clear_number(context), context["ti"].try_number
        kafka = KafkaEosHook(self.kafka_config_id).get_config()
        # Errors name addresses, so log the connection that they come from.
        self.log.info("Kafka connection %r: %s", self.kafka_config_id, kafka.get("bootstrap.servers"))
        try:
            spec = RunSpec(
                kafka=kafka,
                pipeline=self.pipeline or f"{self.dag_id}.{self.task_id}",
                run_id=context["run_id"],
                source_topics=parse_topics("topics", self.topics),
                sink_topic=self.sink_topic,
                sink=with_connection(self.sink),
                dead_letter_topic=self.dead_letter_topic,
                max_dead_letters=self.max_dead_letters,
                allow_loop=self.allow_loop,
                group_id=self.group_id,
                ranges=self._resolved_ranges(context),
                prefix=self.prefix or settings.default_prefix(),
                origin=settings.origin(),
                skip_offsets=parse_ranges("skip_offsets", self.skip_offsets),
                source_partition=parse_partition("source_partition", self.source_partition),
                audit=self.audit(context),
                task=task_of(context, self.dag_id, self.task_id),
                clear_number=clears,
                try_number=try_number,
                on_committed=self.on_committed,
                mark_output=self.mark_output,
                transaction_timeout=self.transaction_timeout,
                delivery_timeout=self.delivery_timeout,
                max_send_attempts=self.max_send_attempts,
                compression=self.compression,
                ledger=settings.with_key(self.ledger) if self.ledger else settings.default_ledger(),
            )
        except (ValueError, OverflowError) as error:  # a range or interval that cannot be
            raise ConfigurationError(str(error)) from error
        from airflow_eos.ledger.keys import run_key

        self._run_key = run_key(spec)
        return spec

    def _resolved_ranges(self, context: Context) -> RangeMode:
        mode = resolve_ranges(
            self.ranges,
            context,
            allowed_lateness=self.allowed_lateness,
            partition_duration=self.partition_duration,
        )
        if self.ranges == DATA_INTERVAL and isinstance(mode, Interval):
            refuse_another_grid(context, mode)
            warn_of_read_before(context, mode)
        return accepting(mode) if accepts(self.accept_deleted) else mode

    def finish(self, context: Context, record: RunRecord) -> dict[str, Any]:
        """Report a committed run to Airflow; return :meth:`RunRecord.summary` for XCom.

        :raises DifferentWork: another task did the work, and this one did nothing.
        :raises AirflowSkipException: nothing was read, and ``on_empty`` is ``skip``.
        """
        refuse_other_task(self, context, record, told_apart=self._told_apart)
        self.run_record = record
        describe_outlets(context, record)
        summary = record.summary()
        self.log.info("%s: %s", "Found in the ledger" if record.found else "Committed", summary)
        if self.on_empty == "skip" and not record.records_read and not record.records_written:
            notes = "".join(f"; {note}" for note in summary["notes"])
            raise AirflowSkipException(f"{record.run_key} is committed; there was nothing to read{notes}")
        return summary

    def audit(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - for subclasses
        """Return details about who requested this run, and why, for its record."""
        return {}

    # -- called by OpenLineage if its provider is installed --

    def get_openlineage_facets_on_start(self) -> Any:
        """Return topics as datasets."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return topics as datasets, counts, and the offset ranges as a facet of the run."""
        return self._lineage(self.run_record)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return topics as datasets, and the run's key: nothing was written."""
        return self._lineage(None)

    def _lineage(self, record: RunRecord | None) -> Any:
        from airflow_eos.hooks.kafka_eos import KafkaEosHook
        from airflow_eos.lineage import run_lineage

        sources = parse_topics("topics", self.topics)
        kafka = KafkaEosHook(self.kafka_config_id).get_config()
        return run_lineage(kafka, sources, self.sink_topic, record, self._run_key, self.sink)
