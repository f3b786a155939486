"""Wait until a data interval is over in the topics."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from airflow_eos import settings
from airflow_eos.model.ranges import DEFAULT_ALLOWED_LATENESS, Interval, interval_of
from airflow_eos.operators.partition_interval import PartitionDuration
from airflow_eos.operators.rendered import parse_topics
from airflow_eos.operators.task_identity import DATA_INTERVAL, accepts, resolve_ranges
from airflow_eos.sensors.waiting import WaitingSensor
from airflow_eos.triggers.kafka_data_interval import KafkaDataIntervalTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_eos.engine.lag import IdlePolicy


class KafkaDataIntervalSensor(WaitingSensor):
    """Wait until every partition has passed the end of the Dag run's data interval.

    The clock decides when an interval ends; a slow producer or an open transaction may delay the topic.
    A partition has passed the end when it holds a record of that time or later with no open transaction
    before it. This is the condition under which a run with ``ranges="data_interval"`` can fix its boundary;
    waiting for it in a deferred sensor costs no worker slot and no retry of the run. Nothing is fixed here.

    If the log does not show what the interval holds, because records are deleted or have a timestamp in the
    far future, the sensor fails like the run would (``IntervalUnaccountable``).

    :param topics: one topic to read, a list, or the text of a list, as a template renders it. (templated)
    :param allowed_lateness: how long after the end to wait for an idle partition; give the run the same.
    :param idle_partitions: a partition without a record at or after the end has passed it once the allowed
        lateness is over, as for the run (``"allowed_lateness"``), or never (``"wait"``).
    :param partition_duration: in a partitioned Dag: as the operator has it.
    :param accept_deleted: as the operator has it: do not fail where records are deleted. (templated)
    :param interval: this interval instead of the Dag run's.
    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param deferrable: default ``[operators] default_deferrable``.
    :raises ConfigurationError: a literal is wrong, or the Dag's schedule gives no intervals; Airflow shows it
        as an import error of the Dag.
    """

    template_fields: Sequence[str] = ("topics", "accept_deleted", *WaitingSensor.template_fields)

    def __init__(
        self,
        *,
        topics: Sequence[str] | str,
        allowed_lateness: dt.timedelta = DEFAULT_ALLOWED_LATENESS,
        idle_partitions: IdlePolicy = "allowed_lateness",
        partition_duration: PartitionDuration | None = None,
        accept_deleted: bool | str = False,
        interval: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        self.topics = topics
        self.allowed_lateness = allowed_lateness
        self.idle_partitions: IdlePolicy = idle_partitions
        self.partition_duration = partition_duration
        self.accept_deleted = accept_deleted
        self.interval = interval
        self.ranges = DATA_INTERVAL if interval is None else interval
        super().__init__(**kwargs)

    def make_trigger(self, context: Context) -> KafkaDataIntervalTrigger:
        """Return the condition; raises ConfigurationError for a Dag run without an interval."""
        interval = interval_of(
            resolve_ranges(
                self.ranges,
                context,
                allowed_lateness=self.allowed_lateness,
                partition_duration=self.partition_duration,
            )
        )
        assert interval is not None, "an interval is given, or resolved"
        return KafkaDataIntervalTrigger(
            topics=list(parse_topics("topics", self.topics)),
            start=interval.start.isoformat(),
            end=interval.end.isoformat(),
            allowed_lateness=interval.allowed_lateness.total_seconds(),
            idle_partitions=self.idle_partitions,
            accept_deleted=interval.accept_deleted or accepts(self.accept_deleted),
            ledger_topic=settings.default_ledger_topic(),
            kafka_config_id=self.kafka_config_id,
            poll_interval=self.poke_interval,
        )
