"""Wait until a run of another Dag is committed, by the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos import settings
from airflow_eos.model.names import checked_prefix
from airflow_eos.model.ranges import DEFAULT_ALLOWED_LATENESS, Cursor
from airflow_eos.operators.parameter_table import check_topics_needed
from airflow_eos.operators.partition_interval import PartitionDuration
from airflow_eos.operators.rendered import parse_partition, parse_topics
from airflow_eos.operators.task_identity import resolve_ranges
from airflow_eos.sensors.waiting import WaitingSensor
from airflow_eos.triggers.run_committed import RunCommittedTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_eos.operators.task_identity import Ranges


class RunCommittedSensor(WaitingSensor):
    """Wait until the ledger holds a run; return its record's summary.

    Across Dags, Airflow deployments and clears: the ledger says what is committed, where the state of a task
    instance only says how its last try ended. A run is named as the operator names it: by pipeline and Dag
    run for a cursor, by pipeline, topics and interval for data intervals, or by its key. A run of that name
    that read other topics or ranges than those given here fails the task.

    Example::

        RunCommittedSensor(
            task_id="classified", pipeline="flights_daily.classify",
            ranges="data_interval", topics=["flights"],
        )

    :param pipeline: name of the pipeline, by default of the operator ``<dag_id>.<task_id>``. (templated)
    :param run_id: the Dag run of a cursor run. (templated)
    :param ranges: as given to the operator; ``"data_interval"``: the interval, or the partition, of *this*
        Dag run.
    :param topics: topics of the operator; needed with intervals and partitions. (templated)
    :param source_partition: of a mapped operator.
    :param run_key: names the run instead of all of these; ``airflow eos ledger`` lists keys. (templated)
    :param partition_duration: in a partitioned Dag: as the operator has it.
    :param ledger_topic: default ``[eos] ledger_topic``. (templated)
    :param prefix: first part of transactional ids, without a dot; default ``[eos] prefix``. (templated)
    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param deferrable: default ``[operators] default_deferrable``.
    :raises ConfigurationError: a literal is wrong, or does not name a run; Airflow shows it as an import
        error of the Dag.
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "run_id",
        "topics",
        "run_key",
        "ledger_topic",
        "prefix",
        *WaitingSensor.template_fields,
    )

    def __init__(
        self,
        *,
        pipeline: str,
        run_id: str = "{{ run_id }}",
        ranges: Ranges | None = None,
        topics: Sequence[str] | str = (),
        source_partition: int | str | None = None,
        run_key: str | None = None,
        partition_duration: PartitionDuration | None = None,
        ledger_topic: str | None = None,
        prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.pipeline = pipeline
        self.run_id = run_id
        self.ranges: Ranges = Cursor() if ranges is None else ranges
        self.topics = topics
        self.source_partition = source_partition
        self.run_key = run_key
        self.partition_duration = partition_duration
        self.ledger_topic = ledger_topic
        self.prefix = prefix
        super().__init__(**kwargs)

    def make_trigger(self, context: Context) -> RunCommittedTrigger:
        """Return the condition; raises ConfigurationError if the run cannot be named."""
        run_key, work = (self.run_key, {}) if self.run_key else self._named(context)
        return RunCommittedTrigger(
            pipeline=self.pipeline,
            run_key=run_key,
            ledger_topic=self.ledger_topic or settings.default_ledger_topic(),
            prefix=checked_prefix(self.prefix) if self.prefix else settings.default_prefix(),
            work=work,
            kafka_config_id=self.kafka_config_id,
            poll_interval=self.poke_interval,
        )

    def _named(self, context: Context) -> tuple[str, dict[str, Any]]:
        """Return the run's key, and the other given properties of its work, which its record must match."""
        from airflow_eos.ledger import keys
        from airflow_eos.model.spec import RunSpec
        from airflow_eos.run.work import WorkDefinition

        topics = parse_topics("topics", self.topics) if self.topics else ()
        partition = parse_partition("source_partition", self.source_partition)
        ranges = resolve_ranges(
            self.ranges,
            context,
            allowed_lateness=DEFAULT_ALLOWED_LATENESS,
            partition_duration=self.partition_duration,
        )
        if not topics:
            check_topics_needed(ranges, partition)
            topics = ("any",)  # not part of a cursor run's name
        spec = RunSpec(
            kafka={"bootstrap.servers": "unused"},
            pipeline=self.pipeline,
            run_id=self.run_id,
            source_topics=topics,
            group_id="unused",
            ranges=ranges,
            source_partition=partition,
        )
        work = WorkDefinition.of(spec).to_dict()
        fields = (*(("topics",) if self.topics else ()), "interval", "ranges")
        return keys.run_key(spec), {name: work[name] for name in fields if name in work}
