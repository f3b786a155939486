"""Writes to the ledger outside of runs: pins, commands, the index.

Each write is a small transaction. First the transactional id is fenced. A transaction of the id that is still
open on a leader is aborted, or refused, before anything is written behind it (law 12, KAFKA-20734). The
caller then reads the ledger and decides on the messages. The messages are staged, optionally checked, and
committed.

The fence excludes writers with the same id. Other writers may write the same key under an id that the caller
does not know, such as the run whose key is dismissed. There the order of the log decides: a staged message
has an offset, and a later record of the key replaces it. The caller therefore looks for records of others
below its own (``check``), and aborts if there is one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_eos.exceptions import NotYetVisible, OutcomeUnknown, RunFenced
from airflow_eos.model.kafka import ActiveProducer, CommittedOffset, EndTxnAnswer, ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.ports import Cluster, ProducerSession, Transactions

log = logging.getLogger(__name__)

SEEN_SECONDS = 15.0
"""A marker takes milliseconds, or a failover if the ledger partition has no leader."""
_POLL_SECONDS = 0.02
_MAX_FENCES = 3
"""Attempts to abort transactions that earlier owners of the id left open; each attempt takes an epoch."""


def open_of(
    cluster: Cluster, producer_id: int, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ActiveProducer]:
    """Return the partitions in which a transaction of this producer id is open, from their leaders.

    :raises BrokersUnavailable: a leader does not answer, so its partition is unknown.
    """
    if not partitions:
        return {}
    return {
        tp: producer
        for tp, producers in cluster.describe_producers(partitions).items()
        for producer in producers
        if producer.producer_id == producer_id and producer.is_open
    }


def own_open(
    cluster: Cluster, producer: ProducerIdentity, partitions: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions with an open transaction of exactly this epoch."""
    open_there = open_of(cluster, producer.producer_id, partitions)
    return [tp for tp, other in open_there.items() if other.producer_epoch == producer.producer_epoch]


def is_overtaken(epoch: int, open_there: Mapping[TopicPartition, ActiveProducer]) -> bool:
    """Return whether one of these transactions is of a later epoch: a newer attempt is writing it."""
    return any(active.producer_epoch > epoch for active in open_there.values())


@dataclass(eq=False)
class LedgerTransaction:
    """A fenced, still empty transaction, for one :meth:`commit`.

    :param places: the ledger partitions it writes to.
    """

    cluster: Cluster
    transactions: Transactions
    session: ProducerSession
    places: Collection[TopicPartition]
    sleep: Callable[[float], None]
    clock: Callable[[], float]

    @property
    def identity(self) -> ProducerIdentity:
        """Producer id and epoch that the fence returned."""
        return self.session.identity

    def commit(
        self,
        messages: Sequence[LedgerMessage],
        *,
        group: str = "",
        offsets: Mapping[TopicPartition, CommittedOffset] | None = None,
        check: Callable[[Sequence[int]], object] | None = None,
    ) -> Sequence[int]:
        """Stage and commit messages; return their offsets. Any error aborts the transaction and is raised.

        :param group: consumer group whose ``offsets`` are committed with the messages.
        :param check: called with the offsets of the messages before the commit; its exceptions abort.
        :raises Exception: as :meth:`~airflow_eos.ports.ProducerSession.commit`; the outcome is then unknown.
        """
        try:
            self.session.begin()
            written = self.session.stage(group, offsets or {}, messages)
            if check is not None:
                check(written)
            self.session.commit()
        except BaseException:
            self._abort()
            raise
        return written

    def wait_until_seen(self) -> None:
        """Wait until the leaders have the commit marker: the coordinator's answer does not prove that.

        :raises NotYetVisible: a leader does not have it after :data:`SEEN_SECONDS`.
        """
        deadline = self.clock() + SEEN_SECONDS
        while left_open := own_open(self.cluster, self.identity, self.places):
            if self.clock() >= deadline:
                raise NotYetVisible(
                    f"a transaction of {self.identity.transactional_id} is committed, and the leader of "
                    f"{_named(left_open)} still holds it for open; see `airflow eos repair`"
                )
            self.sleep(_POLL_SECONDS)

    def _abort(self) -> None:
        """Abort with this producer id and epoch, so that readers do not wait for the transaction timeout."""
        try:
            answer = self.transactions.abort(self.identity)
        except Exception as failure:  # noqa: BLE001 - the caller raises the original error
            log.warning("Cannot abort the transaction of %s: %s", self.identity.transactional_id, failure)
        else:
            log.info("Aborting the transaction of %s: %s", self.identity.transactional_id, answer.value)


@dataclass(eq=False)
class LedgerWriter:
    """Fences transactional ids for small transactions.

    :param transactions: fences ids, and signs the messages if the ledger has a key.
    """

    cluster: Cluster
    transactions: Transactions
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def fenced(
        self, transactional_id: str, places: Collection[TopicPartition], *, may_end: bool = True
    ) -> Iterator[LedgerTransaction]:
        """Fence a transactional id, and yield its transaction.

        :param may_end: whether to abort an earlier transaction of the id that is still open there. This is
            safe for these writes, because no reader relies on them before their marker. False if runs use the
            id too: only a run can find out how its transaction was decided.
        :raises OutcomeUnknown: a transaction is open there that may not be aborted, or stays open.
        :raises RunFenced: another writer has fenced the id.
        """
        if not may_end:
            self._refuse_left_open(transactional_id, places)
        session = self._fence(transactional_id, places, may_end=may_end)
        try:
            yield LedgerTransaction(self.cluster, self.transactions, session, places, self.sleep, self.clock)
        finally:
            session.close()

    def write(
        self,
        transactional_id: str,
        place: TopicPartition,
        messages: Sequence[LedgerMessage],
        check: Callable[[ProducerIdentity], object],
    ) -> None:
        """Write messages whose content does not depend on the fence, and wait until they are visible.

        :param check: called with the writer's identity when the messages are staged; its exceptions abort.
        :raises NotYetVisible: the messages are committed, but a marker is missing.
        """
        with self.fenced(transactional_id, [place]) as transaction:
            transaction.commit(messages, check=lambda _: check(transaction.identity))
            transaction.wait_until_seen()

    def _fence(
        self, transactional_id: str, places: Collection[TopicPartition], *, may_end: bool
    ) -> ProducerSession:
        for _ in range(_MAX_FENCES):
            session = self.transactions.fence(transactional_id)
            try:
                left_open = open_of(self.cluster, session.identity.producer_id, places)
            except BaseException:
                session.close()
                raise
            if not left_open:
                return session
            session.close()
            if is_overtaken(session.identity.producer_epoch, left_open):
                raise _taken(transactional_id)
            if not may_end:
                raise _left_open(transactional_id, left_open)
            log.warning(
                "%s: the marker of an earlier transaction of %s is missing; aborting that transaction",
                _named(left_open),
                transactional_id,
            )
            answer = self.transactions.abort_again(session.identity, sorted(left_open))
            if answer is not EndTxnAnswer.ENDED:
                raise _taken(transactional_id)
        raise _left_open(transactional_id, left_open)

    def _refuse_left_open(self, transactional_id: str, places: Collection[TopicPartition]) -> None:
        """Refuse before the fence, because fencing makes the coordinator forget the transaction's outcome."""
        transaction = self.cluster.describe_transaction(transactional_id)
        if transaction is None or transaction.is_under_way:
            return
        left_open = open_of(self.cluster, transaction.producer_id, places)
        if left_open and not is_overtaken(transaction.producer_epoch, left_open):
            raise _left_open(transactional_id, left_open)


def _named(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def _taken(transactional_id: str) -> RunFenced:
    return RunFenced(f"transactional id {transactional_id} was taken by another; retry")


def _left_open(transactional_id: str, partitions: Collection[TopicPartition]) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{_named(partitions)}: an earlier transaction of {transactional_id} was not ended there; run the "
        "pipeline once, which ends it, or see `airflow eos repair`"
    )
