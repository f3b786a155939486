"""Waits until the leaders of all partitions show the end of a commit.

The coordinator's answer does not suffice: see :mod:`airflow_eos.run.unfinished`. The next task must see
everything, and a successful task must not have invisible output.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import BrokersUnavailable, EosError, NotYetVisible, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ledger.writer import open_of, own_open
from airflow_eos.model.kafka import ActiveProducer, ProducerIdentity, TransactionState
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.ports import Cluster, Transactions
from airflow_eos.run import laws
from airflow_eos.run.unfinished import write_commit_markers

log = logging.getLogger(__name__)

_LOG_AFTER_SECONDS = 5.0
_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.02, 1.0


@dataclass(eq=False)
class Visibility:
    """Checks that readers get the whole commit of a run, and waits for it.

    :param transactions: writes missing markers.
    """

    cluster: Cluster
    transactions: Transactions
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def missing(self, record: RunRecord) -> list[str]:
        """Return the places where a committed run is not visible yet."""
        return [text for text, _ in self._invisible(record).values()]

    def wait(
        self,
        record: RunRecord,
        ledger: Collection[TopicPartition] = (),
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        *,
        seconds: float,
    ) -> None:
        """Wait until nothing is missing; write the markers that the coordinator has omitted, once.

        For a run that another attempt committed, perhaps long ago, only the output is checked.

        :param ledger: of this process's own commit, under the identity that it still holds: the ledger
            partitions of the transaction.
        :param offsets: the committed offsets of ``group`` in it.
        :raises NotYetVisible: after ``seconds``, or at once if visibility cannot be checked.
        """
        producer = record.producer
        began, pause, is_logged = self.clock(), _POLL_SECONDS, False
        over = ended = is_refused = False
        while True:
            waited = self.clock() - began
            try:
                missing, open_there = self._check(record, ledger, offsets or {}, group, is_ended=ended)
                if laws.over_everywhere(missing):
                    return
                if over and open_there and not ended:
                    ended = True
                    left_out = ActiveProducer(producer.producer_id, producer.producer_epoch, last_sequence=-1)
                    write_commit_markers(self.transactions, producer, dict.fromkeys(open_there, left_out))
                    continue
                # Before the next check: once the transaction is complete, no marker is in flight.
                over = over or (not ended and bool(open_there) and self._is_over(producer))
            except BrokersUnavailable as error:
                missing = [str(error)]
            except NotYetVisible:  # the markers are refused
                if is_refused:
                    raise
                # A replaced leader may have shown the transaction as open: the new one has a later marker.
                is_refused, ended = True, False
                continue
            except EosError as error:
                # Such as a permission revoked meanwhile: its error class says that nothing is committed.
                reason = str(error).partition(": create it")[0]  # a ledger that was deleted is to be restored
                raise NotYetVisible(
                    f"{record.run_key} is committed, but whether readers see it cannot be asked: {reason}; a "
                    "retry asks again and writes nothing"
                ) from error
            if waited >= seconds:
                raise NotYetVisible(
                    f"{record.run_key} is committed, not yet visible in {'; '.join(missing)}; a retry waits "
                    "for it and writes nothing. If it stays so see `airflow eos repair`"
                )
            if waited >= _LOG_AFTER_SECONDS and not is_logged:
                is_logged = True
                log.warning(
                    "%s is committed; waiting until readers see %s", record.run_key, "; ".join(missing)
                )
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    # -- checks --

    def _check(
        self,
        record: RunRecord,
        ledger: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, int],
        group: str,
        *,
        is_ended: bool,
    ) -> tuple[list[str], set[TopicPartition]]:
        """Return what is missing, and where our transaction is open.

        :param is_ended: whether the omitted markers were written.
        """
        hidden = self._invisible(record)
        in_ledger = own_open(self.cluster, record.producer, ledger)
        texts = [text for text, _ in hidden.values()]
        texts += [f"{tp} (its leader holds the transaction for open)" for tp in in_ledger]
        open_there = {tp for tp, (_, own) in hidden.items() if own}.union(in_ledger)
        # Offsets of intervals have no meaning, and pending ones may be those of another run.
        if (group == record.group_id or not is_ended) and self._is_pending(record, group, offsets):
            texts.append(f"the offsets of group {group!r} (pending)")
            open_there.add(self.cluster.group_offsets_partition(group))
        return texts, open_there

    def _invisible(self, record: RunRecord) -> dict[TopicPartition, tuple[str, bool]]:
        """Return why last offsets are invisible, and whether our own transaction is open there."""
        written = {TopicPartition(r.topic, r.partition): r.last_offset for r in record.receipts if r.records}
        try:
            stable = self.cluster.last_stable_offsets(sorted(written)) if written else {}
        except UnknownTopic:
            stable = self._stable_of_remaining(written)
        behind = [tp for tp, last in sorted(written.items()) if tp in stable and stable[tp] <= last]
        ends = self.cluster.log_ends(behind) if behind else {}
        for tp in behind:
            if ends[tp] <= written[tp]:
                log.warning(
                    "%s ends at %d, the run wrote up to %d: the topic was created again or truncated",
                    tp,
                    ends[tp],
                    written[tp],
                )
        behind = [tp for tp in behind if ends[tp] > written[tp]]
        still_open = open_of(self.cluster, record.producer.producer_id, behind)
        hidden: dict[TopicPartition, tuple[str, bool]] = {}
        for tp in behind:
            own = tp in still_open and still_open[tp].current_txn_start_offset <= written[tp]
            why = "its leader holds the transaction for open" if own else "behind one of another producer"
            hidden[tp] = (f"{tp} (offsets {stable[tp]} to {written[tp]}: {why})", own)
        return hidden

    def _stable_of_remaining(self, written: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets of the written topics that still exist."""
        stable: dict[TopicPartition, int] = {}
        for topic in sorted({tp.topic for tp in written}):
            partitions = [tp for tp in written if tp.topic == topic]
            try:
                stable.update(self.cluster.last_stable_offsets(partitions))
            except UnknownTopic as error:
                log.warning("cannot check whether readers see the output: %s", error)
        return stable

    def _is_pending(self, record: RunRecord, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Return whether our offsets are pending; once ours are committed, pending ones are a newer run's."""
        if not offsets or not self.cluster.has_pending_offsets(group, sorted(offsets)):
            return False
        committed = self.cluster.committed(group, sorted(offsets), stable=False)
        if any(keys.metadata_names(offset.metadata, record.run_key) for offset in committed.values()):
            return False
        behind = any(tp not in committed or committed[tp].offset < end for tp, end in offsets.items())
        return group != record.group_id or behind

    def _is_over(self, producer: ProducerIdentity) -> bool:
        """Return whether the coordinator has written everything for this transaction."""
        seen = self.cluster.describe_transaction(producer.transactional_id)
        if seen is None or seen.producer_id != producer.producer_id:
            return True  # forgotten, or its epochs are used up: neither happens to an open transaction
        if seen.producer_epoch != producer.producer_epoch:
            # A later epoch is given only when the transaction is complete. An earlier one is an answer from
            # before it began, by a coordinator that is behind (KAFKA-21181).
            return seen.producer_epoch > producer.producer_epoch
        return seen.state is TransactionState.COMPLETE_COMMIT
