"""The authority: the only place that decides whether a run or a value is committed.

A look-up reads every record of a key below the ledger partition's high watermark. Below the last stable
offset the broker has decided; from there to the high watermark the control marker of a record's producer id
decides. A reader that stops at the last stable offset would miss a committed run whenever another pipeline's
transaction is open in the same partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from airflow_eos.exceptions import LedgerTampered, LedgerTruncated, OutcomeUnknown
from airflow_eos.ledger.keys import LEDGER_IDENTITY_KEY, is_ever_written, pruned_digest, pruned_key
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.ledger.records.pruned import PrunedRuns
from airflow_eos.model.ledger import LedgerEntry, LedgerValue, LedgerView
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import V
from airflow_eos.ports import Ledger

log = logging.getLogger(__name__)

UNDECIDED_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
LACKS_SIGNATURE = (
    "lacks only a signature of [eos] ledger_key. If the ledger's other users have another secret, set "
    "theirs. If a secret was taken out of it, put it back behind the new one. If runs of yours wrote it "
    "without a key, give the key to all that use the ledger and run `airflow eos sign`, which lets it count"
)
"""Why an unsigned record is ignored, and what to do about it."""
_COPY = (
    ". If the topic is the copy that a mirror made of another cluster's ledger, delete it: see "
    "docs/guarantees/limits.md#a-mirrored-cluster"
)


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """The result of a look-up.

    :param committed: latest committed value per key; keys without one are absent.
    """

    committed: Mapping[str, LedgerValue]
    open_records: tuple[LedgerEntry, ...] = ()


def answer_of(view: LedgerView) -> LedgerAnswer:
    """Decide every record of a view by its own producer's markers."""
    committed = dict(view.committed)
    decided: list[LedgerEntry] = []
    open_records: dict[int, list[LedgerEntry]] = {}
    for entry in view.tail:
        if entry.kind == "record":
            open_records.setdefault(entry.producer_id, []).append(entry)
            continue
        ended = open_records.pop(entry.producer_id, [])
        if entry.kind == "commit":
            decided.extend(ended)
    for record in sorted(decided, key=lambda entry: entry.offset):
        if record.value is not None:
            committed[record.key] = record.value
        else:  # a tombstone
            committed.pop(record.key, None)
    return LedgerAnswer(committed, tuple(record for records in open_records.values() for record in records))


@dataclass(eq=False)
class Authority:
    """Decides from the ledger alone; an exception of a commit never counts as an answer.

    :param sleep: waits between look-ups of a record whose transaction is still open.
    """

    ledger: Ledger
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _warned: set[tuple[int, int]] = field(default_factory=set, init=False)

    def peek(
        self, keys: Collection[str], *, routing: str, prefixes: Collection[str | Around] = ()
    ) -> Mapping[str, LedgerValue]:
        """Return committed values without waiting. A value is final; a missing key proves nothing."""
        partition = self.ledger.partition_for(routing)
        view = self.ledger.view(partition, keys, prefixes)
        self._warn_of_ignored(partition, view)
        return answer_of(view).committed

    def record(self, kind: type[V], key: str, *, routing: str, fenced: bool = False) -> V | None:
        """Return the record in a key's committed value, by :meth:`peek`, or :meth:`settle` if fenced."""
        value = (self.settle if fenced else self.peek)([key], routing=routing).get(key)
        return None if value is None else kind.from_json(value, key)

    def unsigned(self, keys: Collection[str], *, routing: str) -> list[str]:
        """Return, for messages, the newest records of keys that lack only a signature."""
        place = self.place(routing)
        view = self.ledger.view(place.partition, keys)
        return [
            f"the record of {key!r} at offset {view.no_evidence[key]} of {place} {LACKS_SIGNATURE}"
            for key in sorted(view.unsigned)
        ]

    def place(self, routing: str) -> TopicPartition:
        """Return the ledger partition of a routing string."""
        return TopicPartition(self.ledger.topic, self.ledger.partition_for(routing))

    def settle(
        self,
        keys: Collection[str],
        *,
        routing: str,
        prefixes: Collection[str | Around] = (),
        exceptional: Collection[str] = (),
    ) -> Mapping[str, LedgerValue]:
        """Return committed values; a missing key is *not committed*, provided the caller holds the fence.

        The fence completes the transactions of the caller's transactional id. This method waits for any other
        open transaction that has a record of a wanted key.

        :param prefixes: also return every key that begins with one of these.
        :param exceptional: also return these keys, which usually do not exist: their absence proves nothing,
            so it is not an error in a partition that has lost its first records.
        :raises OutcomeUnknown: such a transaction stays open.
        :raises LedgerTruncated: a key is missing, and the partition has lost its first records.
        :raises LedgerTampered: a key is missing, and a record of it was not written by this package.
        """
        partition = self.ledger.partition_for(routing)
        return self.settle_in(partition, keys, prefixes, exceptional)

    def settle_in(
        self,
        partition: int,
        keys: Collection[str],
        prefixes: Collection[str | Around] = (),
        exceptional: Collection[str] = (),
    ) -> Mapping[str, LedgerValue]:
        """Like :meth:`settle`, in a given ledger partition."""
        deadline = self.clock() + UNDECIDED_WAIT_SECONDS
        while True:
            view = self.ledger.view(partition, [*keys, *exceptional], prefixes)
            answer = answer_of(view)
            self._warn_of_ignored(partition, view)
            if not answer.open_records:
                nothing_is_forged(partition, view.no_evidence, answer.committed, view.unsigned)
                nothing_is_missing(
                    partition, view.log_start, [key for key in keys if key not in answer.committed]
                )
                return answer.committed
            if self.clock() >= deadline:
                undecided = sorted({record.key for record in answer.open_records})
                raise OutcomeUnknown(
                    f"ledger partition {partition} holds {undecided} in a transaction that "
                    f"has been open for {UNDECIDED_WAIT_SECONDS:.0f} s; retry when it has ended. "
                    "`airflow eos doctor` names it"
                )
            self.sleep(_POLL_SECONDS)

    def _warn_of_ignored(self, partition: int, view: LedgerView) -> None:
        for key, offset in view.no_evidence.items():
            if (partition, offset) not in self._warned:
                self._warned.add((partition, offset))
                log.warning(
                    "ledger partition %d, offset %d: a record of %r that no run wrote is ignored; see who "
                    "may write to the ledger topic%s",
                    partition,
                    offset,
                    key,
                    f"; it {LACKS_SIGNATURE}" if key in view.unsigned else "",
                )


def is_pruned(run_key: str, pipeline: str, values: Mapping[str, LedgerValue]) -> bool:
    """Return whether the record of a whole run was pruned: the run is committed.

    :param values: by ledger key, among them that of :func:`~airflow_eos.ledger.keys.pruned_key`.
    """
    key = pruned_key(pipeline, run_key)
    return key in values and pruned_digest(run_key) in PrunedRuns.from_json(values[key], key).digests


def nothing_is_forged(
    partition: int,
    no_evidence: Mapping[str, int],
    committed: Mapping[str, LedgerValue],
    unsigned: Collection[str] = (),
) -> None:
    """Law 3: a key is not proven uncommitted if a foreign record may have replaced this package's record.

    Compaction keeps the last record of a key, regardless of its writer. Keys that this package never writes
    do not matter.

    :param no_evidence: offset of the last record per key that is not evidence.
    :param unsigned: keys whose last such record lacks only a signature.
    """
    for key, offset in sorted(no_evidence.items()):
        if key not in committed and is_ever_written(key):
            raise LedgerTampered(
                f"ledger partition {partition}"
                + (
                    f": the record of {key!r} at offset {offset} {LACKS_SIGNATURE}. If somebody else wrote it"
                    if key in unsigned
                    else f" holds a record of {key!r} at offset {offset} that no run wrote, and none of ours"
                )
                + ": it is not evidence, and compaction may have removed ours for it. Take the right to "
                "write to the ledger from that writer, and look into the sink for the run's output; if there "
                "is none, `airflow eos dismiss` makes the key unused again"
                + (_COPY if key == LEDGER_IDENTITY_KEY else "")
            )


def nothing_is_missing(partition: int, log_start: int, keys: Collection[str]) -> None:
    """Law 3: a key is not proven uncommitted if the first records of the ledger partition were deleted.

    :param log_start: log start offset of the ledger partition; compaction never moves it.
    """
    if keys and log_start > 0:
        raise LedgerTruncated(
            f"ledger partition {partition} starts at offset {log_start}: records before it were deleted, and "
            f"{min(keys)!r}, which it does not hold, may have been among them; restore the ledger, and see "
            "that its cleanup.policy is 'compact'"
        )
