"""The oracle of every fault experiment: each input is in the output exactly once, and all else agrees.

Inputs carry tags: ``<source partition>:<number>``, numbers rising from 0 within a partition. A pipeline
under test keeps the tag, as the value or as the first word of it. What readers see is then compared with
what was published, tag by tag.

::

    log = InputLog(partitions=4)
    log.publish(kafka.client_config(), "src", 1000)
    ...
    verdict = judge(log, read_topic(kafka.client_config(), "out"))
    assert verdict.exact, verdict.complaints()
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos_testing.exceptions import EmbeddedKafkaError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from airflow_eos_testing.readers import Record

_SHOWN = 10
_FEED_SECONDS = 0.2
Tag = str


class InputLog:
    """Ground truth: every published tag, in order, per source partition. Thread-safe.

    :param partitions: partitions of the source topic.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._numbers = [0] * partitions
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(self._numbers)

    def next_tag(self, partition: int) -> Tag:
        """Return the next tag of a partition and count it as published."""
        with self._lock:
            number = self._numbers[partition]
            self._numbers[partition] += 1
        return f"{partition}:{number}"

    def tags(self) -> Iterable[Tag]:
        """Every tag published so far."""
        with self._lock:
            numbers = list(self._numbers)
        return (f"{partition}:{n}" for partition, count in enumerate(numbers) for n in range(count))

    def publish(
        self, kafka: Mapping[str, Any], topic: str, count: int, *, padding: int = 0, timeout: float = 120.0
    ) -> None:
        """Publish records idempotently, spread over the partitions; return when all are acknowledged.

        The key is the tag, too: the default partitioner spreads it over the sink's partitions.

        :param padding: filler bytes after each tag.
        :raises EmbeddedKafkaError: some were not acknowledged, so the input is unknown.
        """
        with _Publisher(kafka, topic, timeout) as publisher:
            for index in range(count):
                publisher.send(index % self.partitions, self.next_tag(index % self.partitions), padding)

    def feed(
        self,
        kafka: Mapping[str, Any],
        topic: str,
        rate: float,
        ended: threading.Event,
        *,
        padding: int = 0,
        timeout: float = 120.0,
    ) -> None:
        """Publish as :meth:`publish`, at ``rate`` records per second, until ``ended`` is set."""
        chunk = max(1, round(rate * _FEED_SECONDS))
        with _Publisher(kafka, topic, timeout) as publisher:
            due = time.monotonic()
            while not ended.wait(max(0.0, due - time.monotonic())):
                for index in range(chunk):
                    publisher.send(index % self.partitions, self.next_tag(index % self.partitions), padding)
                due += chunk / rate


class _Publisher:
    """An idempotent producer; at the end of the block all records are acknowledged, or it raises."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, timeout: float) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._timeout = timeout
        self._failed: list[Any] = []
        settings = {
            "enable.idempotence": True,
            # With more, librdkafka bumps its epoch when a leader changes, and resends records that were
            # acknowledged in other partitions (its issue 4953).
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 5,
            "delivery.timeout.ms": int(timeout * 1000),
        }
        self._producer = Producer({"log_level": 2, **kafka, **settings})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._producer.flush(self._timeout)
        if kind is None and (left or self._failed):
            raise EmbeddedKafkaError(
                f"{left} inputs were not acknowledged, {len(self._failed)} failed: {self._failed[:1]}"
            )

    def send(self, partition: int, tag: Tag, padding: int) -> None:
        value = f"{tag} {'x' * padding}" if padding else tag
        while True:
            try:
                self._producer.produce(
                    self._topic, key=tag, value=value, partition=partition, on_delivery=self._delivered
                )
                break
            except BufferError:
                self._producer.poll(0.1)  # brokers are down: wait, to keep the order
        self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(error)


def tag_of(record: Record) -> Tag:
    """Return a record's tag: the first word of its value."""
    return (record.value or b"").split(b" ", 1)[0].decode(errors="replace")


@dataclass(frozen=True)
class Verdict:
    """The oracle's result. For an exact output, all fields but the two counts are empty.

    :param records_in: inputs published.
    :param records_out: records that a read_committed reader sees in the sink.
    :param lost: tags that are in no output.
    :param duplicated: tags in more than one output, each once per surplus output.
    :param unknown: outputs that belong to no input.
    :param out_of_order: ``later before earlier`` pairs: within one sink partition, records of one source
        partition that are not in its order.
    :param disagreements: everything else that does not fit: ledger, offsets, transactions, other readers.
    """

    records_in: int
    records_out: int
    lost: tuple[Tag, ...] = ()
    duplicated: tuple[Tag, ...] = ()
    unknown: tuple[Tag, ...] = ()
    out_of_order: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = field(default=())

    @property
    def exact(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.unknown or self.out_of_order or self.disagreements)

    def complaints(self) -> str:
        """Describe what is wrong, with the first few of each kind; empty if nothing is."""
        kinds = ("lost", "duplicated", "unknown", "out_of_order", "disagreements")
        lines = []
        for kind in kinds:
            tags = getattr(self, kind)
            if tags:
                lines.append(f"{len(tags)} {kind}: {', '.join(tags[:_SHOWN])}")
        return "\n".join(lines)


def judge(
    inputs: InputLog | Iterable[Tag],
    outputs: Iterable[Record],
    *,
    tag: Callable[[Record], Tag] = tag_of,
    ordered: bool = True,
    disagreements: Iterable[str] = (),
    source: Iterable[Record] | None = None,
) -> Verdict:
    """Compare the records that readers see with the published ones.

    :param outputs: records of the sink, in the order of their offsets within each partition.
    :param tag: returns the tag of an output.
    :param ordered: the pipeline is row-wise, so order within a source partition must be kept within each sink
        partition.
    :param disagreements: complaints of other checks (:mod:`airflow_eos_testing.agreement`).
    :param source: records of the source topic, if it can be read to the end. A record that its producer
        wrote twice counts as two inputs: a disagreement, not a duplicate made by the pipeline.
    """
    expected = list(inputs.tags() if isinstance(inputs, InputLog) else inputs)
    if len(set(expected)) != len(expected):
        raise ValueError("two inputs have the same tag: the oracle could not tell them apart")
    counts: Counter[Tag] = Counter()
    sequences: defaultdict[tuple[str, int], list[Tag]] = defaultdict(list)
    for record in outputs:
        name = tag(record)
        counts[name] += 1
        sequences[record.topic, record.partition].append(name)
    expected_tags = set(expected)
    written = Counter(dict.fromkeys(expected, 1)) if source is None else Counter(map(tag, source))
    duplicated = [name for name in expected for _ in range(counts[name] - max(1, written[name]))]
    return Verdict(
        records_in=len(expected),
        records_out=counts.total(),
        lost=tuple(name for name in expected if not counts[name]),
        duplicated=tuple(duplicated),
        unknown=tuple(name for name in counts if name not in expected_tags),
        out_of_order=tuple(_disorder(sequences, expected_tags)) if ordered else (),
        disagreements=(*disagreements, *_source_complaints(expected, written)),
    )


def _source_complaints(expected: Sequence[Tag], written: Counter[Tag]) -> Iterable[str]:
    """Yield complaints if the source does not hold each input exactly once."""
    twice = [name for name in expected if written[name] > 1]
    never = [name for name in expected if not written[name]]
    if twice:
        yield f"the source holds {len(twice)} inputs more than once, by its own producer: {twice[:_SHOWN]}"
    if never:
        yield f"the source lacks {len(never)} inputs that were acknowledged: {never[:_SHOWN]}"


def _disorder(sequences: Mapping[tuple[str, int], list[Tag]], expected_tags: set[Tag]) -> Iterable[str]:
    for (topic, partition), names in sequences.items():
        latest: dict[str, int] = {}
        for name in names:
            source, _, number = name.partition(":")
            if name not in expected_tags or not number.isdigit():
                continue
            before = latest.get(source, -1)
            if int(number) < before:
                yield f"{source}:{before} before {name} in {topic}-{partition}"
            latest[source] = max(before, int(number))
