"""Checks that ledger, offsets, transactions and a continuous reader agree with a cursor pipeline's output.

Every check returns complaints, none if all is well; :func:`airflow_eos_testing.oracle.judge` adds them to its
verdict.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos_testing.readers import Record, read_topic

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from airflow_eos.wire.connection import BrokerConnections

_FINISHED = ("CompleteCommit", "CompleteAbort", "Empty", "Dead")
_TRANSACTION_LOG = "__transaction_state"
_POLL = 0.2


def ledger_records(kafka: Mapping[str, Any], ledger: str, pipeline: str) -> list[RunRecord]:
    """Return every committed run record of a pipeline, in the order of the log, repeated ones too."""
    records = [
        RunRecord.from_json(record.value)
        for record in read_topic(kafka, ledger)
        if record.key is not None and keys.is_run_record(record.key.decode()) and record.value is not None
    ]
    return [record for record in records if record.pipeline == pipeline]


def ledger_complaints(records: Sequence[RunRecord], outputs: int) -> Iterable[str]:
    """Check that run keys are unique, written records add up to the output, and ranges tile each partition.

    Also, no run may have read more records of a range than the range has offsets.
    """
    for key, count in Counter(record.run_key for record in records).items():
        if count > 1:
            yield f"the ledger holds {count} records of {key}"
    written = sum(record.records_written for record in records)
    if written != outputs:
        yield f"the ledger counts {written} written records, readers see {outputs}"
    position: dict[str, int] = {}
    for record in records:
        for each in record.ranges:
            name = str(each.topic_partition)
            before = position.get(name, each.start)
            if each.start != before:
                yield f"{record.run_key} begins {name} at {each.start}, the run before it ended at {before}"
            position[name] = each.end
            if (read := record.records_read_by_partition.get(name, 0)) > each.span:
                yield f"{record.run_key} read {read} records of {name} in a range of {each.span} offsets"


def offsets_complaints(
    kafka: Mapping[str, Any], group: str, records: Sequence[RunRecord], source: str, *, drained: bool = True
) -> Iterable[str]:
    """Check that committed offsets are the last committed run's ends, and the source's if ``drained``."""
    from confluent_kafka import Consumer, TopicPartition

    ends: dict[int, int] = {}
    for record in records:
        for each in record.ranges:
            if each.topic == source:
                ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    consumer = Consumer({"log_level": 2, **kafka, "group.id": group, "enable.auto.commit": False})
    try:
        partitions = sorted(consumer.list_topics(source, timeout=30).topics[source].partitions)
        partitions_read = [TopicPartition(source, partition) for partition in partitions]
        for committed in consumer.committed(partitions_read, timeout=60):
            label = f"{source}-{committed.partition}"
            if committed.offset != ends.get(committed.partition, committed.offset):
                end = ends[committed.partition]
                yield f"{group} stands at {committed.offset} in {label}, its last run ended at {end}"
            if drained:
                place = TopicPartition(source, committed.partition)
                _, end = consumer.get_watermark_offsets(place, timeout=30)
                if end not in (committed.offset, 0):
                    yield f"{group} stands at {committed.offset} in {label}, the log ends at {end}"
    finally:
        consumer.close()


def unfinished_transactions(
    kafka: Mapping[str, Any], prefix: str = "", timeout: float = 60.0
) -> Iterable[str]:
    """Return transactions of ids with a prefix that are not finished after ``timeout`` seconds.

    Queries every coordinator; one that does not answer in time is a complaint, too.
    """
    from airflow_eos.exceptions import UnknownTopic
    from airflow_eos.wire.client_config import ClientConfig
    from airflow_eos.wire.connection import BrokerConnections

    deadline = time.monotonic() + timeout
    with BrokerConnections(ClientConfig.of(kafka)) as connections:
        while True:
            try:
                coordinators = set(connections.topics([_TRANSACTION_LOG])[_TRANSACTION_LOG].leaders.values())
            except UnknownTopic:
                return []
            complaints = list(
                chain.from_iterable(_open_transactions(connections, node, prefix) for node in coordinators)
            )
            if not complaints or time.monotonic() > deadline:
                return complaints
            time.sleep(_POLL)


def _open_transactions(connections: BrokerConnections, node: int, prefix: str) -> Iterable[str]:
    from kafka.errors import KafkaError
    from kafka.protocol.admin import ListTransactionsRequest

    if node < 0:
        return [f"a partition of {_TRANSACTION_LOG} has no leader"]
    try:
        answer = connections.wait(connections.send(ListTransactionsRequest(max_version=0), node))
    except KafkaError as error:
        return [f"coordinator {node} does not list its transactions: {error}"]
    if answer.error_code:
        return [f"coordinator {node} does not list its transactions: error code {answer.error_code}"]
    return [
        f"transaction {each.transactional_id} is {each.transaction_state}"
        for each in answer.transaction_states
        if each.transactional_id.startswith(prefix) and each.transaction_state not in _FINISHED
    ]


class WatchingReader:
    """A read_committed reader that follows a topic from its beginning through all faults; a context manager.

    It must see what a reader at the end sees, at the same offsets: no committed record is ever taken back or
    withheld.

    :param check: called with each record as it is read; returns a complaint, or None.
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, *, check: Callable[[Record], str | None] | None = None
    ) -> None:
        from airflow_eos_testing.readers import follow_topic

        self._stop = threading.Event()
        self._seen: dict[tuple[int, int], bytes | None] = {}
        self._complaints: list[str] = []
        self._error: BaseException | None = None
        self._check = check
        self._topic = topic
        self._follow = follow_topic(kafka, topic, self._stop.is_set)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)

    def __len__(self) -> int:
        return len(self._seen)

    def complaints(self, final: Iterable[Record], timeout: float = 60.0) -> Iterable[str]:
        """Compare with what a reader sees at the end, sorted as :func:`read_topic` does.

        :param timeout: seconds that a running reader has to catch up.
        """
        values = {(record.partition, record.offset): record.value for record in final}
        deadline = time.monotonic() + timeout
        while (unseen := [place for place in values if place not in self._seen]) and (
            self._thread.is_alive() and time.monotonic() < deadline
        ):
            time.sleep(_POLL)
        yield from self._complaints
        if self._error is not None:
            yield f"a reader of {self._topic} ended early: {self._error!r}"
        if unseen:
            place_text = "{}-{} offset {}".format(self._topic, *min(unseen))
            yield f"a reader never saw {len(unseen)} records, the first one at {place_text}"
        for place, value in list(self._seen.items()):
            if values.get(place, b"\0 missing") != value:
                place_text = f"{self._topic}-{place[0]} offset {place[1]}"
                yield f"a reader saw {value!r} at {place_text}, which is gone"

    def _read(self) -> None:
        try:
            self._read_all()
        except BaseException as error:  # noqa: BLE001 - reported with the complaints
            self._error = error

    def _read_all(self) -> None:
        for record in self._follow:
            place = (record.partition, record.offset)
            if place in self._seen:
                self._complaints.append(f"offset {place[1]} of {self._topic}-{place[0]} was delivered twice")
            self._seen[place] = record.value
            if self._check is not None and (text := self._check(record)) is not None:
                self._complaints.append(text)


def describe(records: Sequence[RunRecord]) -> str:
    """Return one line per run record, for a log."""
    return "\n".join(json.dumps(record.summary()) for record in records)
