"""The one way to the ledger for whatever is not a run: pins, commands, the index.

Each write is a small transaction of its own. The transactional id is fenced first. What an earlier
transaction of the id left open on a leader is ended, or refused, before anything is written behind it
(law 12, KAFKA-20734). The caller reads the ledger behind the fence and decides what to write. That is staged,
may be looked at once more where it stands in the log, and is committed.

The fence keeps out those that use the same id. Others may write the same key under an id that the caller does
not know, such as the run whose key is dismissed. There the order of the log decides: what is staged has an
offset, and whatever comes later under the key counts instead. So the caller looks for records of others below
its own (``check``), and gives up where there is one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_eos.exceptions import NotYetVisible, OutcomeUnknown, RunFenced
from airflow_eos.model.kafka import EndTxnAnswer

if TYPE_CHECKING:
    from airflow_eos.model.kafka import ActiveProducer, CommittedOffset, ProducerIdentity
    from airflow_eos.model.ledger import LedgerMessage
    from airflow_eos.model.ranges import TopicPartition
    from airflow_eos.ports import Cluster, ProducerSession, Transactions

log = logging.getLogger(__name__)

SEEN_SECONDS = 15.0
"""A marker takes milliseconds; a ledger partition without a leader takes a fail-over."""
_POLL_SECONDS = 0.02
_FENCES = 3
"""Epochs spent on what earlier transactions of the id left open, before that is given up."""


def open_of(
    cluster: Cluster, producer_id: int, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ActiveProducer]:
    """Return the partitions in which a transaction of this producer id is open, as their leaders say.

    :raises BrokersUnavailable: when a leader does not answer: nothing is known of its partition then.
    """
    if not partitions:
        return {}
    return {
        tp: one
        for tp, known in cluster.describe_producers(partitions).items()
        for one in known
        if one.producer_id == producer_id and one.is_open
    }


class LedgerTransaction:
    """A fenced transaction into which nothing was written yet; good for one :meth:`commit`.

    :param places: the ledger partitions it writes to.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactions: Transactions,
        session: ProducerSession,
        places: Collection[TopicPartition],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._session = session
        self._places = places
        self._sleep = sleep
        self._clock = clock

    @property
    def identity(self) -> ProducerIdentity:
        """Producer id and epoch that the fence gave."""
        return self._session.identity

    def commit(
        self,
        messages: Sequence[LedgerMessage],
        *,
        group: str = "",
        offsets: Mapping[TopicPartition, CommittedOffset] | None = None,
        check: Callable[[Sequence[int]], object] | None = None,
    ) -> Sequence[int]:
        """Stage and commit; return the offsets of the messages. Any error aborts, and is raised.

        :param group: consumer group whose ``offsets`` are committed with the messages.
        :param check: called with the offsets of the messages before the commit; what it raises aborts.
        :raises Exception: as :meth:`~airflow_eos.ports.ProducerSession.commit` raises it: whether the
            transaction is committed is not known then.
        """
        try:
            self._session.begin()
            written = self._session.stage(group, offsets or {}, messages)
            if check is not None:
                check(written)
            self._session.commit()
        except Exception:
            self._abort()
            raise
        return written

    def wait_until_seen(self) -> None:
        """Wait until the leaders show the commit: the coordinator's word is not theirs.

        :raises NotYetVisible: after :data:`SEEN_SECONDS`.
        """
        deadline = self._clock() + SEEN_SECONDS
        while left_open := self._own_open():
            if self._clock() >= deadline:
                raise NotYetVisible(
                    f"a transaction of {self.identity.transactional_id} is committed, and the leader of "
                    f"{_named(left_open)} still holds it for open; see `airflow eos repair`"
                )
            self._sleep(_POLL_SECONDS)

    def _own_open(self) -> list[TopicPartition]:
        """Return where exactly this transaction is open: another may have the id by now."""
        found = open_of(self._cluster, self.identity.producer_id, self._places)
        return [tp for tp, one in found.items() if one.producer_epoch == self.identity.producer_epoch]

    def _abort(self) -> None:
        """End it under its own identity, so that readers do not wait for its time-out."""
        try:
            answer = self._transactions.abort(self.identity)
        except Exception as failure:  # noqa: BLE001 - the error that led here is the one to raise
            log.warning("%s could not be aborted: %s", self.identity.transactional_id, failure)
        else:
            log.info("%s: its transaction: %s", self.identity.transactional_id, answer.value)


class LedgerWriter:
    """Fences transactional ids for small transactions.

    :param transactions: signs the messages, where the ledger has a key.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactions: Transactions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._sleep = sleep
        self._clock = clock

    @contextmanager
    def fenced(
        self, transactional_id: str, places: Collection[TopicPartition], *, may_end: bool = True
    ) -> Iterator[LedgerTransaction]:
        """Take the epoch of an id, and yield its transaction.

        :param places: the ledger partitions that will be written.
        :param may_end: whether what an earlier transaction of the id left open there may be aborted: nobody
            relies on a write of this kind before its marker is seen. False where runs use the id too: how
            theirs was decided, only a run finds out.
        :raises OutcomeUnknown: something is open there that may not be ended, or does not end.
        :raises RunFenced: another has taken the epoch.
        """
        if not may_end:
            self._refuse_left_open(transactional_id, places)
        session = self._fence(transactional_id, places, may_end=may_end)
        try:
            yield LedgerTransaction(
                self._cluster, self._transactions, session, places, self._sleep, self._clock
            )
        finally:
            session.close()

    def write(
        self,
        transactional_id: str,
        place: TopicPartition,
        messages: Sequence[LedgerMessage],
        check: Callable[[ProducerIdentity], object],
    ) -> None:
        """Write messages whose content does not depend on the fence, and wait until they are seen.

        :param check: called when they are staged, with the identity they stand under; what it raises aborts.
        :raises NotYetVisible: they are committed, and a marker is missing.
        """
        with self.fenced(transactional_id, [place]) as transaction:
            transaction.commit(messages, check=lambda _: check(transaction.identity))
            transaction.wait_until_seen()

    def _fence(
        self, transactional_id: str, places: Collection[TopicPartition], *, may_end: bool
    ) -> ProducerSession:
        for _ in range(_FENCES):
            session = self._transactions.fence(transactional_id)
            try:
                left_open = open_of(self._cluster, session.identity.producer_id, places)
            except BaseException:
                session.close()
                raise
            if not left_open:
                return session
            session.close()
            if not may_end:
                raise _left_open(transactional_id, left_open)
            log.warning(
                "%s: the marker of an earlier transaction of %s is missing; it is written now, as an abort",
                _named(left_open),
                transactional_id,
            )
            answer = self._transactions.abort_again(session.identity, sorted(left_open))
            if answer is not EndTxnAnswer.ENDED:
                raise RunFenced(f"transactional id {transactional_id} was taken by another; retry")
        raise _left_open(transactional_id, left_open)

    def _refuse_left_open(self, transactional_id: str, places: Collection[TopicPartition]) -> None:
        """Refuse before the fence, which makes the coordinator forget how the transaction was decided."""
        word = self._cluster.describe_transaction(transactional_id)
        if word is None or word.is_under_way:
            return
        if left_open := open_of(self._cluster, word.producer_id, places):
            raise _left_open(transactional_id, left_open)


def _named(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def _left_open(transactional_id: str, partitions: Collection[TopicPartition]) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{_named(partitions)}: an earlier transaction of {transactional_id} was not ended there; run the "
        "pipeline once, which ends it, or see `airflow eos repair`"
    )
