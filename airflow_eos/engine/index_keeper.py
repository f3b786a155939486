"""Writes the index of a ledger partition, so that the cost of look-ups does not grow with the number of runs.

It runs two transactions under one id, each after its own fence. The first writes the changed leaves. The
second writes the root, which names the leaves by offset and covers everything decided until then, including
the leaves; a look-up then reads almost nothing beyond the index. A crash between the two leaves unreferenced
leaves, which are harmless.

The index is only an optimisation: if it is missing, old or damaged, look-ups read more.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from airflow_eos.exceptions import LedgerUnreadable, OutcomeUnknown, ProducerFenced, RunFenced
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.ledger_index import (
    IndexRoot,
    IndexUnusable,
    LeafAt,
    Place,
    leaf_digest,
    leaf_json,
    split,
)
from airflow_eos.ledger.writer import LedgerTransaction, LedgerWriter
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.ports import IndexedLedger

log = logging.getLogger(__name__)

TAIL_BYTES = 1 << 20
"""Index a partition when a look-up reads this many bytes beyond its index: about a thousand small runs."""
_TAIL_PER_LEAF = 8 << 10
_LONGEST_TAIL = 4 << 20
READ_SECONDS = 10.0
_TURNS = 5
_BETWEEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Indexed:
    """The result of an index update.

    :param through: the index covers all records below this offset.
    :param keys: number of keys that were added or moved.
    :param leaves: number of leaves.
    :param is_whole: whether it covers everything that was decided when the update began.
    """

    through: int
    keys: int
    leaves: int
    is_whole: bool


@dataclass(eq=False)
class IndexKeeper:
    """Updates the index of a ledger.

    :param prefix: the ledger's prefix, see :class:`~airflow_eos.model.ledger.LedgerId`.
    """

    ledger: IndexedLedger
    writer: LedgerWriter
    prefix: str
    clock: Callable[[], float] = time.monotonic

    def is_due(self, partition: int, tail_bytes: int) -> bool:
        """Return whether a tail of this size justifies an update, which costs more with many leaves."""
        if tail_bytes < TAIL_BYTES or tail_bytes >= _LONGEST_TAIL:
            return tail_bytes >= TAIL_BYTES
        newest = self.ledger.index_root(partition)
        return newest is None or tail_bytes >= len(newest[1].leaves) * _TAIL_PER_LEAF

    def extend(self, partition: int) -> Indexed | None:
        """Extend the index to the records decided since its last update.

        Reads for about :data:`READ_SECONDS`; the next call continues.

        :returns: None if another process was updating the index.
        :raises OutcomeUnknown: like any error of a transaction; the ledger stays correct.
        """
        try:
            return self._extend(partition)
        except (ProducerFenced, RunFenced) as fenced:
            log.info("Another process is writing the index of ledger partition %d: %s", partition, fenced)
            return None

    def _extend(self, partition: int) -> Indexed | None:
        deadline = self.clock() + READ_SECONDS
        with self._fenced(partition) as transaction:
            newest = self.ledger.index_root(partition)
            base = IndexRoot(self.ledger.describe().topic_id) if newest is None else newest[1]
            through, news = self.ledger.decided(partition, base.through, READ_SECONDS)
            if through == base.through:
                return Indexed(through, 0, len(base.leaves), is_whole=True)
            try:
                base, changed, replaced = self._merged(partition, base, news)
            except (IndexUnusable, LedgerUnreadable) as reason:
                log.warning("Rebuilding the index of ledger partition %d: %s", partition, reason)
                base = IndexRoot(base.topic_id)
                through, news = self.ledger.decided(partition, 0, READ_SECONDS)
                base, changed, replaced = self._merged(partition, base, news)
            is_whole = self.clock() < deadline
            leaves = _write_leaves(transaction, partition, base.leaves, changed)
        root = self._write_root(partition, newest, IndexRoot(base.topic_id, through, leaves), replaced)
        if root is None:
            return None
        return Indexed(root.through, len(news) + len(root.recent), len(root.leaves), is_whole)

    def _fenced(self, partition: int) -> AbstractContextManager[LedgerTransaction]:
        name = keys.index_transactional_id(self.prefix, self.ledger.topic, partition)
        return self.writer.fenced(name, [TopicPartition(self.ledger.topic, partition)])

    def _merged(
        self, partition: int, base: IndexRoot, news: Mapping[str, Place]
    ) -> tuple[IndexRoot, list[dict[str, Place]], list[LeafAt]]:
        """Return the unchanged part of the index, the contents of new leaves, and the leaves they replace."""
        places = {**base.recent, **news}
        of_leaf: dict[LeafAt | None, dict[str, Place]] = defaultdict(dict)
        for key, place in places.items():
            # A key below the first leaf is added to the first leaf.
            leaf = base.leaf_of(key) or (base.leaves[0] if base.leaves else None)
            of_leaf[leaf][key] = place
        changed: list[dict[str, Place]] = []
        for leaf, updates in of_leaf.items():
            before = {} if leaf is None else self.ledger.index_leaf(partition, leaf)
            changed += split({**before, **updates})
        replaced = [leaf for leaf in of_leaf if leaf is not None]
        kept = tuple(leaf for leaf in base.leaves if leaf not in of_leaf)
        return IndexRoot(base.topic_id, base.through, kept), changed, replaced

    def _write_root(
        self,
        partition: int,
        newest: tuple[int, IndexRoot] | None,
        root: IndexRoot,
        replaced: list[LeafAt],
    ) -> IndexRoot | None:
        # The fence guarantees that the leaves are committed and their markers written.
        with self._fenced(partition) as transaction:
            if self.ledger.index_root(partition) != newest:
                return None  # another process wrote a root in between
            through, recent = self.ledger.decided(partition, root.through, _BETWEEN_SECONDS)
            root = IndexRoot(root.topic_id, through, root.leaves, recent)
            producer = transaction.identity.producer_id, transaction.identity.producer_epoch
            kept = {leaf.digest for leaf in root.leaves}
            messages = [
                LedgerMessage(keys.INDEX.leaf(leaf.digest), None, "", partition)
                for leaf in replaced
                if leaf.digest not in kept
            ]
            transaction.commit(
                [*messages, LedgerMessage(keys.INDEX.root, root.to_json(producer), "", partition)]
            )
        return root


def _write_leaves(
    transaction: LedgerTransaction, partition: int, kept: tuple[LeafAt, ...], changed: list[dict[str, Place]]
) -> tuple[LeafAt, ...]:
    """Write leaves in their own transaction; return all leaves of the index, in key order."""
    if not changed:
        return kept
    producer = transaction.identity.producer_id, transaction.identity.producer_epoch
    digests = [leaf_digest(places) for places in changed]
    messages = [
        LedgerMessage(keys.INDEX.leaf(digest), leaf_json(places, producer), "", partition)
        for digest, places in zip(digests, changed, strict=True)
    ]
    offsets = transaction.commit(messages, check=_check_offsets)
    written = [
        LeafAt(min(places), offset, digest)
        for places, offset, digest in zip(changed, offsets, digests, strict=True)
    ]
    return tuple(sorted([*kept, *written], key=lambda leaf: leaf.first))


def _check_offsets(offsets: Sequence[int]) -> None:
    if min(offsets) < 0:
        raise OutcomeUnknown("a broker did not report the offsets at which it wrote the leaves of an index")


def rebuilt(keeper: IndexKeeper, partition: int) -> Indexed:
    """Update an index completely, in several turns; raises OutcomeUnknown if others kept writing it."""
    left = _TURNS
    while left:
        indexed = keeper.extend(partition)
        if indexed is None:
            left -= 1
        elif indexed.is_whole:
            return indexed
    raise OutcomeUnknown(f"the index of partition {partition} was written by others at the same time; retry")
