"""What one run record says was read, read again on purpose, and left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_eos.coverage.offset_set import Spans
from airflow_eos.coverage.segments import LaneKey, Reset
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run import TOPIC_IDS, RunRecord
from airflow_eos.model.ranges import OffsetRange

_WORK, _LOSS = "work", "accepted_loss"


def is_on_purpose(record: RunRecord) -> bool:
    """Tell whether somebody asked for these very offsets: a reprocessing, or given ranges."""
    if keys.REPROCESS_MARK in record.run_key:
        return True
    work = record.details.get(_WORK)
    return record.mode == "explicit" and not (isinstance(work, Mapping) and work.get("advance"))


def _lane_key(record: RunRecord, topic: str, partition: int, topic_ids: Mapping[str, str]) -> LaneKey:
    named = record.details.get(TOPIC_IDS)
    found = named.get(topic) if isinstance(named, Mapping) else None
    return LaneKey(topic, found if isinstance(found, str) else topic_ids.get(topic, ""), partition)


def reads_of(
    record: RunRecord, topic_ids: Mapping[str, str], resets: Sequence[Reset]
) -> Iterator[tuple[LaneKey, int, int, bool]]:
    """Yield what a record says was read, and whether it was read on purpose whatever others did."""
    on_purpose = is_on_purpose(record)
    for one in record.ranges:
        if one.start == one.end:
            continue
        key = _lane_key(record, one.topic, one.partition, topic_ids)
        if on_purpose or not resets:
            yield key, one.start, one.end, on_purpose
            continue
        again = Spans()
        for start, end in _read_again(record, one, resets):
            again.add(start, end)
        yield from ((key, start, end, True) for start, end in again)
        yield from ((key, start, end, False) for start, end in again.outside(one.start, one.end))


def _read_again(record: RunRecord, one: OffsetRange, resets: Sequence[Reset]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range to which a reset had taken the cursor back before the run."""
    for reset in resets:
        was, to = reset.changes.get(one.topic_partition, (0, 0))
        start, end = max(one.start, to), min(one.end, was)
        if reset.moment <= record.staged_at and start < end:
            yield start, end


def left_out_of(record: RunRecord, topic_ids: Mapping[str, str]) -> Iterator[tuple[LaneKey, int, int]]:
    """Yield what a run was told to leave out, or found deleted and accepted."""
    losses = record.details.get(_LOSS)
    for one in losses if isinstance(losses, Sequence) and not isinstance(losses, str) else ():
        try:
            topic, partition, start, end = one["topic"], one["partition"], one["start"], one["end"]
        except (LookupError, TypeError):
            continue
        if all(type(number) is int for number in (partition, start, end)) and 0 <= start < end:
            yield _lane_key(record, str(topic), partition, topic_ids), start, end
