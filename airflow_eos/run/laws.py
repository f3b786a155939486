"""The laws of a run, one function each. The protocol calls them by module, so a test can switch one off.

1. Never a second attempt of a send task within one epoch. The send task refuses it
   (:mod:`airflow_eos.spark.send_task`); :func:`exactly_one_receipt` is the second guard.
2. One transaction per producer instance; after its first epoch, only a proven owner takes another:
   :func:`may_take_epoch`.
3. *Committed* may be believed before the fence, *not committed* only after it (the protocol asks again
   there), and only from a ledger that lost no record and that nobody else wrote to:
   :func:`~airflow_eos.ledger.authority.nothing_is_missing`,
   :func:`~airflow_eos.ledger.authority.nothing_is_forged`. An index covers decided records only:
   :func:`~airflow_eos.ledger.records.ledger_index.may_speak_for`.
4. Every request carries the writers' identity; counts gate the commit: :func:`receipts_match`,
   :func:`proof_holds`. The ledger is written by the driver alone: :func:`ledger_is_no_target`.
5. Ranges lie between the log start and the last stable offset, in the topics that were planned:
   :func:`within_log`, :func:`is_decided`, :func:`topics_unchanged`. An interval whose records the log cannot
   prove is refused before its boundary is fixed (:mod:`airflow_eos.run.log_coverage`).
6. The cursor's group has no live members and moves forward only, from the plan's start:
   :func:`group_is_empty`, :func:`cursor_unmoved`.
7. A group has one owner; ids name the work (:mod:`airflow_eos.ledger.keys`): :func:`group_is_ours`,
   :func:`same_work`.
8. A run without input or output commits, too: the protocol has no other way to succeed.
9. Brokers without partition verification are refused: :func:`broker_verifies`.
10. Delivery time-out + 30 s < transaction time-out <= the broker's maximum: :func:`timeouts_fit`,
    :func:`send_timeout`.
11. Source and sink topics are one cluster: a :class:`~airflow_eos.model.spec.RunSpec` has one client
    configuration, and nothing outside Kafka is covered but the table that is the sink
    (:mod:`airflow_eos.run.publishing`).
12. The coordinator may call a transaction complete that a leader still has open: nothing is written behind an
    open one (:func:`nothing_open`, :func:`begins_with_receipts`), and success waits until every leader has
    ended it (:func:`over_everywhere`).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from airflow_eos.exceptions import (
    BrokerUnsupported,
    CursorMoved,
    DifferentWork,
    DuplicateReceipt,
    GroupNotEmpty,
    GroupOwned,
    LedgerPruned,
    OffsetsOutOfRange,
    ProcessFailed,
    ProtocolViolation,
    RangeUndecided,
    TimeoutsInconsistent,
    TopicRecreated,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import is_pruned
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.pruned import PrunedRuns
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import (
    ActiveProducer,
    CommittedOffset,
    EndTxnAnswer,
    ProducerIdentity,
    TopicDescription,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.output import PartitionReceipt, SealedManifest
from airflow_eos.model.plan import ModeName, RunPlan
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.run.work import ORIGIN, WorkDefinition, disagreement

MARGIN_SECONDS = 30.0


def exactly_one_receipt(receipts: Sequence[PartitionReceipt]) -> None:
    """Law 1: a partition with two receipts was written by two attempts."""
    counts = Counter(TopicPartition(r.topic, r.partition) for r in receipts)
    twice = sorted(str(tp) for tp, n in counts.items() if n > 1)
    if twice:
        raise DuplicateReceipt(
            f"{', '.join(twice)} returned more than one receipt: two attempts wrote in one epoch"
        )


def may_take_epoch(answer: EndTxnAnswer | None) -> bool:
    """Law 2: only EndTxn's proof that the last epoch is ours permits taking the next one."""
    return answer in (EndTxnAnswer.ENDED, EndTxnAnswer.NOTHING_OPEN)


def receipts_match(manifest: SealedManifest, receipts: Sequence[PartitionReceipt]) -> None:
    """Law 4: exactly the sealed records were acknowledged, partition by partition."""
    sealed = {t.topic_partition: (t.records, t.batches) for t in manifest.targets}
    written = {TopicPartition(r.topic, r.partition): (r.records, r.batches) for r in receipts}
    wrong = [
        f"{tp}: sealed {sealed.get(tp, (0, 0))}, acknowledged {written.get(tp, (0, 0))}"
        for tp in sorted(sealed.keys() | written.keys())
        if sealed.get(tp) != written.get(tp)
    ]
    sequences = [f"{r.topic}-{r.partition}" for r in receipts if r.last_sequence != last_sequence(r.records)]
    if wrong or sequences:
        raise ProtocolViolation(
            "receipts do not equal the manifest, (records, batches): " + "; ".join(wrong + sequences)
        )


def ledger_is_no_target(manifest: SealedManifest, ledger_topic: str) -> None:
    """Law 4: executors and driver never write to one partition, because each counts sequences from 0."""
    if any(target.topic == ledger_topic for target in manifest.targets):
        raise ProcessFailed(
            f"process returned rows whose 'topic' is the ledger {ledger_topic!r}; write them to another "
            "topic, or give the ledger a topic of its own"
        )


def last_sequence(records: int) -> int:
    """Return the sequence of the last of ``records`` records, counted from 0 with Kafka's wrap at 2^31."""
    return (records - 1) % 2**31 if records else -1


def proof_holds(
    identity: ProducerIdentity,
    manifest: SealedManifest,
    staged: Mapping[TopicPartition, int],
    expected: Collection[TopicPartition],
    transaction: TransactionDescription | None,
    producers: Mapping[TopicPartition, Sequence[ActiveProducer]],
) -> None:
    """Law 4: coordinator and leaders confirm the receipts (KIP-664).

    :param staged: records in each ledger partition.
    :param expected: every partition of the transaction: targets, ledger and group offsets.
    :param producers: the producers of all partitions of all target topics, and of the ledger's.
    """
    if (
        transaction is None
        or transaction.state is not TransactionState.ONGOING
        or (transaction.producer_id, transaction.producer_epoch)
        != (identity.producer_id, identity.producer_epoch)
        or transaction.partitions != frozenset(expected)
    ):
        raise ProtocolViolation(
            f"transaction {identity.transactional_id} should be Ongoing under producer "
            f"{identity.producer_id} epoch {identity.producer_epoch} with {sorted(map(str, expected))}; "
            f"the coordinator says {transaction}"
        )
    counts = {**staged, **{t.topic_partition: t.records for t in manifest.targets}}
    for tp in sorted(producers.keys() | counts.keys()):
        acknowledged = [
            p
            for p in producers.get(tp, ())
            if (p.producer_id, p.producer_epoch) == (identity.producer_id, identity.producer_epoch)
        ]
        last = acknowledged[0].last_sequence if acknowledged else -1
        if last != last_sequence(counts.get(tp, 0)):
            raise ProtocolViolation(
                f"{tp} should end at sequence {last_sequence(counts.get(tp, 0))} of producer "
                f"{identity.producer_id} epoch {identity.producer_epoch}; its leader says {last}"
            )


def begins_with_receipts(
    identity: ProducerIdentity,
    receipts: Sequence[PartitionReceipt],
    staged: Collection[TopicPartition],
    producers: Mapping[TopicPartition, Sequence[ActiveProducer]],
) -> None:
    """Law 12: our open transaction begins at each receipt's first offset, and is open nowhere else.

    Our marker would decide an earlier transaction that is still open.

    :param staged: ledger partitions, in which it begins at any offset.
    :param producers: as in :func:`proof_holds`.
    """
    first = {TopicPartition(r.topic, r.partition): r.first_offset for r in receipts if r.records}
    for tp in sorted(producers.keys() | first.keys()):
        begins = [
            p.current_txn_start_offset
            for p in producers.get(tp, ())
            if p.producer_id == identity.producer_id and p.is_open
        ]
        if begins != ([first[tp]] if tp in first else begins if tp in staged else []):
            raise ProtocolViolation(
                f"{tp}: the open transaction of producer {identity.producer_id} should begin at "
                f"{first.get(tp, 'no offset')}; its leader says {begins or 'none is open'}: an earlier one "
                "was not ended there"
            )


def nothing_open(begins: Mapping[TopicPartition, ActiveProducer]) -> bool:
    """Law 12: nothing is written after a transaction of our own that is still open there.

    :param begins: partitions whose leaders know such a transaction, after the fence.
    """
    return not begins


def over_everywhere(missing: Sequence[str]) -> bool:
    """Law 12: a commit is a success once every leader shows its end, and readers are past it.

    :param missing: the places that do not show it.
    """
    return not missing


def within_log(wanted: OffsetRange, log_start: int, log_end: int, mode: ModeName = "cursor") -> None:
    """Law 5: all records of the range exist.

    :param mode: how the range was chosen; decides how its loss can be accepted.
    """
    if wanted.span and log_start > wanted.start:
        place = f"{wanted.topic}:{wanted.partition}={log_start}"
        way = {
            "cursor": f"move the cursor: `airflow eos reset-offsets` with --offset {place}",
            "explicit": f"give a range that starts at {log_start}",
            "reprocess": "leave the committed output as it is (an interval with accept_deleted=True appends "
            "what is left; it replaces no rows)",
        }.get(mode, "set accept_deleted=True: what is left is read, and the run's record says so")
        raise OffsetsOutOfRange(
            f"{wanted.topic_partition}: the log starts at {log_start}, the range at {wanted.start}: records "
            f"{wanted.start} to {min(log_start, wanted.end) - 1} were deleted. Restore them, or "
            f"accept the loss and {way}"
        )
    if wanted.end > log_end:
        raise OffsetsOutOfRange(
            f"{wanted.topic_partition}: the range ends at {wanted.end}, the log at {log_end}: the log was "
            "truncated or re-created, or these records were never written; give ranges that end at or below "
            "the end of the log"
        )


def is_decided(wanted: OffsetRange, last_stable: int) -> None:
    """Law 5: no transaction is open below the end of the range."""
    if wanted.end > last_stable:
        raise RangeUndecided(
            f"{wanted.topic_partition}: the range ends at {wanted.end}, the last stable offset is "
            f"{last_stable}: a transaction is still open before its end; retry when it has ended, or give "
            "ranges that end at or below the last stable offset"
        )


def group_is_empty(group: str, members: int) -> None:
    """Law 6: no live member moves the group's offsets; brokers would accept our commits regardless."""
    if members:
        raise GroupNotEmpty(
            f"consumer group {group!r} has {members} live member(s); stop them, or give this pipeline "
            "its own group_id"
        )


def cursor_unmoved(plan: RunPlan, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Law 6: nobody has committed an offset since the plan was made.

    A missing offset has expired, possibly during the run: the ledger's cursor, under our fence, is then the
    group's position, and our offsets are committed with it.
    """
    for tp in plan.starts:
        before = plan.committed.get(tp)
        now = committed[tp].offset if tp in committed else None
        if now is not None and now != before:
            raise CursorMoved(
                f"group {plan.offsets_group!r}, {tp}: committed offset was {before} when the run was planned "
                f"and is {now} now: somebody else commits to this group"
            )


def topics_unchanged(
    topic_ids: Mapping[str, str], topics: Mapping[str, TopicDescription], *, advances: bool
) -> None:
    """Law 5: the topics are those whose offsets were recorded, not later ones of the same name.

    :param topic_ids: recorded ids; those of topics that are not described are ignored.
    :param topics: as they are now.
    :param advances: whether the offsets are those of a cursor, which can be reset.
    """
    for name, topic in topics.items():
        topic_id = topic_ids.get(name, topic.topic_id)
        if topic_id != topic.topic_id:
            advice = (
                "reset the cursor with `airflow eos reset-offsets`"
                if advances
                else "what was read there cannot be read again"
            )
            raise TopicRecreated(
                f"topic {name!r} had id {topic_id} when its offsets were recorded "
                f"and has {topic.topic_id} now: it was deleted and recreated, "
                f"offsets of the old one mean nothing; {advice}"
            )


def group_is_ours(group: str, field: str, recorded: object, own: object) -> None:
    """Law 7: a group's cursor has one pipeline, one prefix, one layout and one origin."""
    if recorded != own:
        origin = " as [eos] origin, where this is that environment under another address"
        how = origin if field == ORIGIN else ""
        raise GroupOwned(
            f"the cursor of group {group!r} belongs to {field} {recorded!r}, this run says {own!r}; "
            f"give this pipeline its own group_id, or set the recorded value{how}"
        )


def no_open_intent(group: str, key: str, value: LedgerValue | None) -> None:
    """Law 7: an open INTENT is settled before a cursor moves on, or its records go to another sink.

    :param key: ledger key of the INTENT.
    :param value: its value in the ledger. A run whose sink is its table settles it before it plans.
    """
    if value is not None:
        intent = Intent.from_json(value, key)
        raise DifferentWork(
            f"run {intent.key} of group {group!r} was about to publish in {intent.sink}, and only that table "
            "can tell whether its rows are there: run the task once as it was then, with that table as its "
            "sink, which finds out, then go on"
        )


def same_work(
    record: RunRecord, transactional_id: str, current: WorkDefinition, *, but_for: Collection[str] = ()
) -> None:
    """Law 7: a record counts for a run only if both have the same transactional id and the same work.

    :param but_for: fields that may differ.
    :raises DifferentWork: lists the recorded and the requested values.
    """
    refusal = disagreement(record, transactional_id, current, but_for)
    if refusal is not None:
        raise DifferentWork(
            f"the ledger's record of {record.run_key} is of other work with the same name: {refusal}"
        )


def not_pruned(run_key: str, pipeline: str, values: Mapping[str, LedgerValue]) -> None:
    """Law 3: a missing record does not mean *no* if the ledger says that it was pruned.

    :param run_key: of the whole run, which the ledger does not hold.
    :param values: values by ledger key, among them that of :func:`~airflow_eos.ledger.keys.pruned_key`.
    :raises LedgerPruned: the run was committed.
    """
    if is_pruned(run_key, pipeline, values):
        pruned = PrunedRuns.from_json(values[keys.pruned_key(pipeline, run_key)])
        raise LedgerPruned(
            f"{run_key} was committed before {pruned.before}, and its record was pruned from the ledger "
            "(`airflow eos prune`): what it read and wrote is not known any more, and it is not done again. "
            "To write it again on purpose use ReplayOffsetRangesOperator, or for an interval a task of "
            "another `pipeline`"
        )


def broker_verifies(verification: bool | None) -> None:
    """Law 9: refuse brokers that accept writes outside a transaction (KIP-890)."""
    if verification is False:
        raise BrokerUnsupported(
            "the brokers do not verify transaction partitions (older than 3.6, or "
            "transaction.partition.verification.enable=false): a late writer could be published; "
            "upgrade or enable it"
        )


def timeouts_fit(delivery: dt.timedelta, transaction: dt.timedelta, broker_maximum_ms: int | None) -> None:
    """Law 10: a batch times out before its transaction does, and the brokers allow the time-out."""
    if delivery.total_seconds() + MARGIN_SECONDS >= transaction.total_seconds():
        raise TimeoutsInconsistent(
            f"delivery_timeout {delivery.total_seconds():.0f} s + {MARGIN_SECONDS:.0f} s must be below "
            f"transaction_timeout {transaction.total_seconds():.0f} s"
        )
    if broker_maximum_ms is not None and transaction.total_seconds() * 1000 > broker_maximum_ms:
        raise TimeoutsInconsistent(
            f"transaction_timeout {transaction.total_seconds():.0f} s is above the brokers' "
            f"transaction.max.timeout.ms {broker_maximum_ms}; lower it or raise the broker setting"
        )


def send_timeout(transaction: dt.timedelta, open_for: float) -> float:
    """Law 10: return the seconds for a send stage: what is left of the transaction, less a margin."""
    return transaction.total_seconds() - open_for - MARGIN_SECONDS
