"""The test bench of the experiments: a pipeline with tagged input, and checks of the outcome."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from typing_extensions import Self

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TransactionDescription
from airflow_eos.model.ranges import Explicit, OffsetRange, TopicPartition
from airflow_eos.model.spec import LedgerSettings
from airflow_eos_testing.agreement import (
    ledger_complaints,
    ledger_records,
    offsets_complaints,
    unfinished_transactions,
)
from airflow_eos_testing.log_dump import dump_log, log_complaints
from airflow_eos_testing.oracle import Verdict, judge
from airflow_eos_testing.readers import Isolation, read_topic
from tests.guarantees.driver import LocalDriver
from tests.support.local_runs import LocalDataPlane, Pipeline

LEDGER = LedgerSettings("ledger-of-experiments", partitions=2)
"""One ledger for all: creating one takes a second, and pipelines share one in production, too."""


class Experiment(Pipeline):
    """A pipeline whose input is tagged, so that an oracle can tell what became of every record.

    :param replicas: replication factor of source and sink; the cluster's default.
    """

    def __init__(self, kafka: Any, *, partitions: int = 2, **changes: Any) -> None:
        super().__init__(kafka, partitions=partitions, **{"ledger": LEDGER, **changes})
        self.ledger = self.spec.ledger.topic
        self.partitions = partitions
        self.sent: list[str] = []
        self._next = [0] * partitions

    def feed(self, records: int) -> list[str]:
        """Write records ``<partition>:<number>``, numbers rising in each partition; return their values."""
        fresh = []
        for partition in range(self.partitions):
            share = records // self.partitions + (partition < records % self.partitions)
            values = [f"{partition}:{self._next[partition] + i:06d}" for i in range(share)]
            self._next[partition] += share
            self.publish(values, partition=partition)
            fresh += values
        self.sent += fresh
        return fresh

    def driver(self, run_id: str = "r1", *, plane: Any = LocalDataPlane, **options: Any) -> LocalDriver:
        """Start an attempt in a process of its own; other options change the spec.

        ``stop_at`` and ``without`` are those of :class:`LocalDriver`.
        """
        its_own = {name: options.pop(name) for name in ("stop_at", "without") if name in options}
        return LocalDriver(self.changed(run_id, **options), plane=plane, **its_own)

    def verdict(self, isolation: Isolation = "read_committed") -> Verdict:
        """Compare the output with everything that was fed: multiset, and order within each partition."""
        return judge(self.sent, read_topic(self.kafka.client_config(), self.sink, isolation))

    def assert_exact(self, *, drained: bool = True) -> None:
        """Assert every input once, in order, and that ledger, offsets and transactions agree with it."""
        config, spec = self.kafka.client_config(), self.spec
        output = read_topic(config, self.sink)
        records = ledger_records(config, self.ledger, spec.pipeline)
        verdict = judge(
            self.sent,
            output,
            disagreements=[
                *ledger_complaints(records, len(output)),
                *offsets_complaints(config, spec.group_id, records, self.source, drained=drained),
                *unfinished_transactions(config, keys.cursor_transactional_id(spec.prefix, spec.group_id)),
            ],
        )
        assert verdict.exact, verdict.complaints()

    def assert_log_as_claimed(self) -> None:
        """Assert that the brokers' log files hold as committed what the runs claim, and nothing else."""
        records = ledger_records(self.kafka.client_config(), self.ledger, self.spec.pipeline)
        assert list(log_complaints(dump_log(self.kafka, self.sink), records, self.sink)) == []

    def committed(self) -> list[int]:
        """Return the group's committed offset in each source partition; -1 where there is none.

        Pending offsets of an open transaction do not count, and are not waited for.
        """
        wanted = [TopicPartition(self.source, p) for p in range(self.partitions)]
        with ControlPlane(self.spec) as control:
            offsets = control.cluster.committed(self.spec.group_id, wanted, stable=False)
        return [offsets[tp].offset if tp in offsets else -1 for tp in wanted]

    def delete_head(self, partition: int, before: int) -> None:
        """Delete the records below an offset, as retention does."""
        tp = ClientPartition(self.source, partition, before)
        self.kafka.admin().delete_records([tp])[tp].result()

    def forget_offsets(self) -> None:
        """Delete the group, as brokers do with an idle one after offsets.retention.minutes."""
        group = self.spec.group_id
        self.kafka.admin().delete_consumer_groups([group])[group].result()


def described(experiment: Experiment) -> TransactionDescription | None:
    """Return the coordinator's description of the pipeline's transactional id."""
    with ControlPlane(experiment.spec) as control:
        return control.cluster.describe_transaction(keys.transactional_id(experiment.spec))


def given(experiment: Experiment) -> Explicit:
    """All 20 records fed into two partitions, as given ranges: no cursor would notice a repetition."""
    return Explicit(tuple(OffsetRange(experiment.source, p, 0, 10) for p in (0, 1)))


class Watcher:
    """A read_committed consumer that reads one partition continuously, in a thread; a context manager."""

    def __init__(self, kafka: Any, topic: str, partition: int = 0, isolation: str = "read_committed") -> None:
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                **kafka.client_config(),
                "group.id": "watcher",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.assign([ClientPartition(topic, partition, 0)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen: list[bytes] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()

    def wait_for(self, records: int) -> None:
        """Wait until the reader has seen this many records."""
        deadline = time.monotonic() + 60
        while len(self.seen) < records:
            assert time.monotonic() < deadline, f"only these were seen: {self.seen}"
            time.sleep(0.01)

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append(message.value())


def values(kafka: Any, topic: str, isolation: str = "read_committed") -> list[str]:
    """Return what readers of an isolation level see, by partition and offset."""
    return [r.value.decode() for r in read_topic(kafka.client_config(), topic, isolation)]  # type: ignore[union-attr, arg-type]


def lost_and_duplicated(sent: Sequence[str], received: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compare as multisets, ignoring order and offsets."""
    wanted, got = Counter(sent), Counter(received)
    return sorted((wanted - got).elements()), sorted((got - wanted).elements())


def judged(experiment: Experiment, isolation: Isolation = "read_committed") -> tuple[list[str], list[str]]:
    """Return the records that the oracle finds lost, and those it finds duplicated."""
    verdict = experiment.verdict(isolation)
    return sorted(verdict.lost), sorted(verdict.duplicated)
