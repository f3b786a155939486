"""The offsets that a run record says were read, read again on purpose, or left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_eos.coverage.lanes import LaneKey, Reset
from airflow_eos.coverage.offset_set import Spans
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import ACCEPTED_LOSS, TOPIC_IDS, WORK, RunRecord


def is_on_purpose(record: RunRecord) -> bool:
    """Return whether a user asked for these offsets: a reprocessing, or explicit ranges."""
    if keys.REPROCESS_MARK in record.run_key:
        return True
    work = record.details.get(WORK)
    return record.mode == "explicit" and not (work and work.get("advance"))


def _lane_key(record: RunRecord, topic: str, partition: int, topic_ids: Mapping[str, str]) -> LaneKey:
    recorded = record.details.get(TOPIC_IDS, {})
    return LaneKey(topic, recorded.get(topic, topic_ids.get(topic, "")), partition)


def reads_of(
    record: RunRecord, topic_ids: Mapping[str, str], resets: Sequence[Reset]
) -> Iterator[tuple[LaneKey, int, int, bool]]:
    """Yield lane, start and end of each read of a record, and whether it was a read on purpose."""
    on_purpose = is_on_purpose(record)
    for offsets in record.ranges:
        if offsets.start == offsets.end:
            continue
        key = _lane_key(record, offsets.topic, offsets.partition, topic_ids)
        if on_purpose or not resets:
            yield key, offsets.start, offsets.end, on_purpose
            continue
        repeated = Spans()
        for reset in resets:
            was, to = reset.changes.get(offsets.topic_partition, (0, 0))
            if reset.moment <= record.staged_at:  # it had moved the cursor back before the run
                repeated.add(max(offsets.start, to), min(offsets.end, was))
        yield from ((key, start, end, True) for start, end in repeated)
        yield from ((key, start, end, False) for start, end in repeated.outside(offsets.start, offsets.end))


def left_out_of(record: RunRecord, topic_ids: Mapping[str, str]) -> Iterator[tuple[LaneKey, int, int]]:
    """Yield the offsets that a run skipped as requested, or accepted as deleted."""
    losses = record.details.get(ACCEPTED_LOSS)
    for loss in losses if isinstance(losses, Sequence) and not isinstance(losses, str) else ():
        try:
            topic, partition, start, end = loss["topic"], loss["partition"], loss["start"], loss["end"]
        except (LookupError, TypeError):
            continue
        if all(type(number) is int for number in (partition, start, end)) and 0 <= start < end:
            yield _lane_key(record, str(topic), partition, topic_ids), start, end
