"""Wait until a consumer group has something to read."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos import settings
from airflow_eos.operators.rendered import parse_topics
from airflow_eos.sensors.waiting import WaitingSensor
from airflow_eos.triggers.kafka_lag import KafkaLagTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class KafkaLagSensor(WaitingSensor):
    """Wait until there are enough offsets between a group's committed offsets and the last stable offset.

    Put it before a :class:`~airflow_eos.operators.read_process_write.ReadProcessWriteOperator` with a cursor:
    records are read in larger batches, and a run without input never starts. The sensor commits nothing, and
    the run that follows decides itself what it reads.

    Example::

        KafkaLagSensor(
            task_id="enough", topics=["flights"], group_id="flights-classifier",
            min_records=10_000, max_delay=timedelta(minutes=30),
        )

    :param topics: one topic to read, a list, or the text of a list, as a template renders it. (templated)
    :param group_id: consumer group that holds the cursor. (templated)
    :param min_records: wait for this many offsets over all partitions, transaction markers and aborted
        records included.
    :param max_delay: after this wait a single record is enough; without one it waits until ``timeout``.
    :param start: where a partition without a position begins, as in ``Cursor(start=...)``.
    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param deferrable: default ``[operators] default_deferrable``.
    :raises ConfigurationError: a literal is wrong; Airflow shows it as an import error of the Dag.
    """

    template_fields: Sequence[str] = ("topics", "group_id", *WaitingSensor.template_fields)

    def __init__(
        self,
        *,
        topics: Sequence[str] | str,
        group_id: str,
        min_records: int = 1,
        max_delay: dt.timedelta | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        **kwargs: Any,
    ) -> None:
        self.topics = topics
        self.group_id = group_id
        self.min_records = min_records
        self.max_delay = max_delay
        self.start = start
        super().__init__(**kwargs)

    def make_trigger(self, context: Context) -> KafkaLagTrigger:
        """Return the condition."""
        any_after = None
        if self.max_delay is not None:
            any_after = (self.waiting_since(context) + self.max_delay).isoformat()
        return KafkaLagTrigger(
            topics=list(parse_topics("topics", self.topics)),
            group_id=self.group_id,
            min_records=self.min_records,
            any_after=any_after,
            start=self.start,
            ledger_topic=settings.default_ledger_topic(),
            kafka_config_id=self.kafka_config_id,
            poll_interval=self.poke_interval,
        )
