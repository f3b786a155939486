"""What must agree with the output of a cursor pipeline: ledger, offsets, transactions, a reader that watched.

Every function returns complaints, none where all is well; :func:`airflow_eos.testing.oracle.judge` takes them
into its verdict.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.model.record import RunRecord
from airflow_eos.testing.readers import Record, read_topic

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_RUN_KEY = b"run:"
_FINISHED = ("CompleteCommit", "CompleteAbort", "Empty", "Dead")
_POLL = 0.2


def ledger_records(kafka: Mapping[str, Any], ledger: str, pipeline: str) -> list[RunRecord]:
    """Return every committed run record of a pipeline, in the order of the log, repeated ones too."""
    found = [
        RunRecord.from_json(record.value)
        for record in read_topic(kafka, ledger)
        if record.key is not None and record.key.startswith(_RUN_KEY) and record.value is not None
    ]
    return [record for record in found if record.pipeline == pipeline]


def ledger_complaints(records: Sequence[RunRecord], outputs: int) -> Iterable[str]:
    """One record per run key; written records add up to the output; ranges tile each source partition."""
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


def offsets_complaints(
    kafka: Mapping[str, Any], group: str, records: Sequence[RunRecord], source: str, *, drained: bool = True
) -> Iterable[str]:
    """Committed offsets are the ends of the last committed run, and where ``drained`` of the source."""
    from confluent_kafka import Consumer, TopicPartition

    ends: dict[int, int] = {}
    for record in records:
        for each in record.ranges:
            if each.topic == source:
                ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    consumer = Consumer({"log_level": 2, **kafka, "group.id": group, "enable.auto.commit": False})
    try:
        partitions = sorted(consumer.list_topics(source, timeout=30).topics[source].partitions)
        asked = [TopicPartition(source, partition) for partition in partitions]
        for found in consumer.committed(asked, timeout=60):
            where = f"{source}-{found.partition}"
            if found.offset != ends.get(found.partition, found.offset):
                end = ends[found.partition]
                yield f"{group} stands at {found.offset} in {where}, its last run ended at {end}"
            if drained:
                place = TopicPartition(source, found.partition)
                _, end = consumer.get_watermark_offsets(place, timeout=30)
                if end not in (found.offset, 0):
                    yield f"{group} stands at {found.offset} in {where}, the log ends at {end}"
    finally:
        consumer.close()


def unfinished_transactions(
    kafka: Mapping[str, Any], prefix: str = "", timeout: float = 60.0
) -> Iterable[str]:
    """Transactions of ids with a prefix that are not finished after ``timeout`` seconds."""
    from kafka.admin import KafkaAdminClient

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    admin: Any = KafkaAdminClient(bootstrap_servers=kafka["bootstrap.servers"])
    deadline = time.monotonic() + timeout
    try:
        while True:
            open_ones = [
                f"transaction {each.transactional_id} is {_text(each.state)}"
                for listings in admin.list_transactions().values()
                for each in listings
                if each.transactional_id.startswith(prefix) and _text(each.state) not in _FINISHED
            ]
            if not open_ones or time.monotonic() > deadline:
                return open_ones
            time.sleep(_POLL)
    finally:
        admin.close()


def _text(state: Any) -> str:
    return str(getattr(state, "value", state))


class WatchingReader:
    """A read_committed reader of a topic, from its beginning, through all faults; a context manager.

    What it saw must be what a reader at the end sees at the same offsets: nothing committed is ever taken
    back.

    :param check: called with each record as it is seen; a text is a complaint, None is none.
    """

    def __init__(
        self, kafka: Mapping[str, Any], topic: str, *, check: Callable[[Record], str | None] | None = None
    ) -> None:
        from airflow_eos.testing.readers import follow_topic

        self._stop = threading.Event()
        self._seen: dict[tuple[int, int], bytes | None] = {}
        self._complaints: list[str] = []
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

    def complaints(self, final: Iterable[Record]) -> Iterable[str]:
        """Compare with what a reader sees at the end, sorted as :func:`read_topic` does."""
        there = {(record.partition, record.offset): record.value for record in final}
        yield from self._complaints
        for place, value in list(self._seen.items()):
            if there.get(place, b"\0 missing") != value:
                where = f"{self._topic}-{place[0]} offset {place[1]}"
                yield f"a reader saw {value!r} at {where}, which is not there any more"

    def _read(self) -> None:
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
