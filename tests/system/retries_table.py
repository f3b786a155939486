"""The columns of the table in docs/retries.md for one pipeline: output, offsets, ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from airflow_eos.exceptions import LedgerMissing
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operations.queries import run_records
from airflow_eos_testing import EmbeddedKafka, count_records, read_topic
from tests.support.group_offsets import commit_offset, with_coordinator
from tests.system import flights_support  # noqa: F401 - makes spark_apps importable

from flights_input import Message, publish  # isort: skip


@dataclass(frozen=True)
class Columns:
    """The columns at one moment.

    :param output: values that ``read_committed`` readers see.
    :param offset: the group's committed offsets, summed over the partitions of the source.
    :param runs: the pipeline's records in the ledger, in commit order.
    """

    output: Counter[bytes]
    offset: int
    runs: tuple[RunRecord, ...]


class Pipeline:
    """One pipeline of the test Dags.

    :param name: its topics are ``<name>-in`` and ``<name>-out`` unless given, its group ``<name>``.
    :param ledger_name: its name in the ledger.
    """

    def __init__(
        self, kafka: EmbeddedKafka, name: str, ledger_name: str, *, source: str = "", sink: str = ""
    ) -> None:
        self._kafka = kafka.client_config()
        self._group = name
        self._ledger_name = ledger_name
        self._source = source or f"{name}-in"
        self._sink = sink or f"{name}-out"

    def look(self) -> Columns:
        """Return the current columns."""
        output = Counter(record.value or b"" for record in read_topic(self._kafka, self._sink))
        return Columns(output, self._offset(), tuple(self._runs()))

    def publish(self, prefix: str, count: int = 100) -> Counter[bytes]:
        """Publish records to the source; return their values."""
        sent = [
            Message(b"%d" % (n % 7), f"{prefix}-{n}".encode(), 1_700_000_000_000 + n) for n in range(count)
        ]
        publish(self._kafka, self._source, sent)
        return Counter(message.value for message in sent)

    def uncommitted(self) -> int:
        """Return the number of output records under ``read_uncommitted``, including aborted and open ones."""
        return count_records(self._kafka, self._sink, "read_uncommitted")

    def moved_by_somebody_else(self, offset: int) -> None:
        """Commit an offset of partition 0 to the group, as a foreign consumer would."""
        commit_offset(self._kafka, self._group, self._source, offset)

    def _offset(self) -> int:
        consumer = Consumer({**self._kafka, "group.id": self._group})
        try:
            partitions = consumer.list_topics(self._source, timeout=20).topics[self._source].partitions
            places = [TopicPartition(self._source, partition) for partition in partitions]
            committed = with_coordinator(lambda: consumer.committed(places, timeout=20))
            return sum(max(0, place.offset) for place in committed)
        finally:
            consumer.close()

    def _runs(self) -> list[RunRecord]:
        try:
            return run_records(Deployment(self._kafka, LedgerSettings()), self._ledger_name)[0]
        except LedgerMissing:  # the very first run creates it
            return []


def added(before: Columns, after: Columns) -> list[tuple[str, int]]:
    """Return run id and try of every run that was added to the ledger."""
    old_keys = {run.run_key for run in before.runs}
    assert all(run in after.runs for run in before.runs), "a record of the ledger was changed"
    return [(run.run_id, run.try_number) for run in after.runs if run.run_key not in old_keys]


def grown(before: Columns, sent: Counter[bytes], **changes: Any) -> Columns:
    """Return the columns expected after all sent records have been processed once."""
    fields = {"output": before.output + sent, "offset": before.offset + sent.total(), "runs": before.runs}
    return Columns(**{**fields, **changes})
