"""A cursor that reads until it has caught up: one run in rounds, each in its own transaction.

Round keys are ``<run>/0``, ``<run>/1``, ... and, for the round that reads up to the last stable offset,
``<run>/final``. Only a committed ``final`` ends the run: a later clear changes nothing, while a try that died
between two rounds goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import ACCEPTED_LOSS, DEAD_LETTERS, TABLE, TOPIC_IDS, RunRecord
from airflow_eos.model.output import NO_OFFSET, PartitionReceipt, total
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Cursor, OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster
from airflow_eos.wording import counted


def bounded_to_data(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    max_records: int,
) -> dict[TopicPartition, int]:
    """Return an end per partition as :func:`bounded`, counted from the first record.

    Offsets without records before it (aborted, compacted, markers) do not count.
    """
    available = {tp: (start, stable[tp]) for tp, start in starts.items()}
    ends = bounded(available, max_records)
    cut = [
        OffsetRange(tp.topic, tp.partition, starts[tp], stable[tp]) for tp in ends if ends[tp] < stable[tp]
    ]
    if not cut:
        return ends
    begins = {**starts, **cluster.next_data(cut)}
    return bounded({tp: (begins[tp], stable[tp]) for tp in starts}, max_records)


def bounded(
    available: Mapping[TopicPartition, tuple[int, int]], max_records: int | None
) -> dict[TopicPartition, int]:
    """Return an end per partition so that all ranges together span at most ``max_records`` offsets.

    Small partitions are read completely; the others share the rest evenly.
    """
    ends = {tp: end for tp, (_, end) in available.items()}
    if max_records is None or sum(end - start for start, end in available.values()) <= max_records:
        return ends
    left = max_records
    by_size = sorted(available, key=lambda tp: (available[tp][1] - available[tp][0], tp))
    for index, tp in enumerate(by_size):
        start, end = available[tp]
        share = min(end - start, left // (len(by_size) - index))
        ends[tp] = start + share
        left -= share
    return ends


def is_last(spec: RunSpec, plan: RunPlan) -> bool:
    """Return whether a planned round ends the run: it catches up, or is the last one allowed."""
    assert isinstance(spec.ranges, Cursor)
    return plan.lag == 0 or (spec.round or 0) + 1 >= spec.ranges.max_rounds


def last_of(spec: RunSpec, plan: RunPlan) -> RunPlan:
    """Return the plan of the last round, with a note if it does not catch up."""
    assert isinstance(spec.ranges, Cursor)
    if not plan.lag:
        return plan
    note = (
        f"not caught up: {counted(spec.ranges.max_rounds, 'round')} (max_rounds) of "
        f"{counted(spec.ranges.max_records or 0, 'offset')} (max_records) leave "
        f"{counted(plan.lag, 'offset')} to the next run; raise either, or run it more often"
    )
    return replace(plan, notes=(*plan.notes, note))


def in_order(spec: RunSpec, records: Mapping[str, RunRecord]) -> tuple[list[RunRecord], RunRecord | None]:
    """Return the rounds committed without a gap, from 0, and the final one; ``records`` are by run key."""
    rounds: list[RunRecord] = []
    while (record := records.get(keys.round_key(spec, len(rounds)))) is not None:
        rounds.append(record)
    return rounds, records.get(keys.final_key(spec))


def merged(rounds: Sequence[RunRecord]) -> RunRecord:
    """Return one record for the whole run: the reads and writes of all rounds, under the last one's key.

    Rounds that do not follow each other, because of another run or a reset, leave several ranges of one
    partition. ``details["rounds"]`` is the number of rounds.
    """
    last = rounds[-1]
    losses = [loss for record in rounds for loss in record.details.get(ACCEPTED_LOSS, ())]
    read: dict[str, int] = {}
    for record in rounds:
        for place, count in record.records_read_by_partition.items():
            read[place] = total((read.get(place, 0), count))
    return replace(
        last,
        ranges=_spanned(record.ranges for record in rounds),
        records_read_by_partition=read,
        records_late=total(record.records_late for record in rounds),
        receipts=_totals(record.receipts for record in rounds),
        started_at=rounds[0].started_at,
        details={
            **last.details,
            **_table(rounds),
            **({ACCEPTED_LOSS: losses} if losses else {}),
            TOPIC_IDS: _first_ids(rounds),
            DEAD_LETTERS: sum(record.dead_letters for record in rounds),
            "rounds": len(rounds),
        },
    )


def _first_ids(rounds: Sequence[RunRecord]) -> dict[str, str]:
    """Return the oldest id of each topic: ranges of an earlier topic cannot be read again."""
    return {
        name: topic_id
        for record in reversed(rounds)
        for name, topic_id in record.details.get(TOPIC_IDS, {}).items()
    }


def _table(rounds: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the detail of the table that was written last, with all its rows; none without a table."""
    tables = [record.details[TABLE] for record in rounds if TABLE in record.details]
    if not tables:
        return {}
    same = [table for table in tables if table["sink"] == tables[-1]["sink"]]
    return {
        TABLE: {**tables[-1], **{count: sum(table[count] for table in same) for count in ("files", "rows")}}
    }


def _spanned(all_ranges: Iterable[Sequence[OffsetRange]]) -> tuple[OffsetRange, ...]:
    spans: dict[TopicPartition, list[OffsetRange]] = {}
    for offsets in (r for ranges in all_ranges for r in ranges):
        joined = spans.setdefault(offsets.topic_partition, [])
        if joined and joined[-1].end == offsets.start:
            joined[-1] = replace(joined[-1], end=offsets.end)
        elif joined and not joined[-1].span:
            joined[-1] = offsets
        elif offsets.span or not joined:
            joined.append(offsets)
    return tuple(sorted(offsets for joined in spans.values() for offsets in joined))


def _totals(all_receipts: Iterable[Sequence[PartitionReceipt]]) -> tuple[PartitionReceipt, ...]:
    totals: dict[tuple[str, int], PartitionReceipt] = {}
    for receipt in (r for receipts in all_receipts for r in receipts):
        before = totals.get((receipt.topic, receipt.partition))
        if before is None or not before.records:
            totals[receipt.topic, receipt.partition] = receipt
        elif receipt.records:
            totals[receipt.topic, receipt.partition] = replace(
                receipt,
                first_offset=before.first_offset,
                records=before.records + receipt.records,
                size=before.size + receipt.size,
                batches=before.batches + receipt.batches,
                last_sequence=NO_OFFSET,  # each round counts from 0
            )
    return tuple(totals[place] for place in sorted(totals))
