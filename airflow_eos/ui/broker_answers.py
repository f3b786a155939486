"""Sends the pages' requests to brokers and ledger; thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_eos.closeable import Closeable
from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import TransactionDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.open_transactions import described_open

_TRANSACTIONS_ASKED = 200
_IDLE_KEPT = 4


@dataclass(frozen=True, slots=True)
class SourceLogs:
    """The logs of source topics.

    :param unseen: topics that this principal may not Describe, or that have a partition without a leader.
    """

    bounds: Mapping[TopicPartition, LogBounds]
    topic_ids: Mapping[str, str]
    unseen: frozenset[str]


class BrokerAnswers(Closeable):
    """Queries brokers and the ledger; each call has its own connections while it runs.

    A call that waits for a silent broker therefore blocks no other. Connections of a failed call are closed,
    others are reused.

    :param deployment: its principal needs Read on the ledger and Describe on the topics.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._idle: deque[ControlPlane] = deque()  # its methods are atomic
        self._is_closed = False

    def close(self) -> None:
        """Close all connections; those in use are closed when their call ends."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def logs(self, topics: Collection[str]) -> SourceLogs:
        """Return the logs of topics, without topics that were deleted and partitions without a leader."""
        with self._control() as control:
            with control.link.connections() as connections:
                visible, failed = connections.visible_topics(topics)
            without = {tp for topic in visible.values() for tp in topic.without_leader}
            partitions = [
                tp for topic in visible.values() for tp in topic.topic_partitions if tp not in without
            ]
            starts = control.cluster.log_starts(partitions) if partitions else {}
            stables = control.cluster.last_stable_offsets(partitions) if partitions else {}
        return SourceLogs(
            {tp: LogBounds(starts[tp], stables[tp]) for tp in partitions},
            {name: topic.topic_id for name, topic in visible.items()},
            frozenset(name for name, error in failed.items() if error is not None)
            | {tp.topic for tp in without},
        )

    def open_transactions(self) -> dict[str, TransactionDescription]:
        """Return the open transactions of this prefix by id, as far as this principal may Describe them."""
        prefix = self._deployment.prefix
        with self._control() as control:
            ids = [name for name in control.cluster.open_transactional_ids() if keys.is_id_of(name, prefix)]
            return described_open(control, ids[:_TRANSACTIONS_ASKED])

    def record(self, pipeline: str, run_key: str) -> RunRecord | None:
        """Look up a run's record in the ledger; None if the pipeline has none."""
        with self._control() as control:
            record = control.authority.record(RunRecord, keys.run_record_key(run_key), routing=pipeline)
        return record if record is not None and record.pipeline == pipeline else None

    @contextmanager
    def _control(self) -> Iterator[ControlPlane]:
        try:
            control = self._idle.pop()
        except IndexError:
            control = ControlPlane(self._deployment)
        is_kept = False
        try:
            yield control
            is_kept = not self._is_closed and len(self._idle) < _IDLE_KEPT
        finally:
            if is_kept:
                self._idle.append(control)
            else:
                control.close()
