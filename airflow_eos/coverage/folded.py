"""The reads of older runs, whose records are no longer kept one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.coverage.lanes import LaneKey
from airflow_eos.coverage.offset_set import Spans
from airflow_eos.coverage.reads import is_on_purpose, left_out_of, reads_of
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.versioned import integer, text

DRAWN_ONE_BY_ONE = 300
"""Newest runs of a pipeline with segments of their own; about as many as 1,000 pixels can show separately."""
_KEPT = ("read", "overlaps", "again", "left_out")


@dataclass(slots=True)
class Earlier:
    """The union of the reads of older runs; :meth:`add` merges a record into it.

    Its size grows with the number of holes, not of runs.

    :param reprocessings: how many of the runs are reprocessings.
    """

    runs: int = 0
    reprocessings: int = 0
    read: dict[LaneKey, Spans[int]] = field(default_factory=dict)
    overlaps: dict[LaneKey, Spans[int]] = field(default_factory=dict)
    again: dict[LaneKey, Spans[int]] = field(default_factory=dict)
    left_out: dict[LaneKey, Spans[int]] = field(default_factory=dict)

    def copy(self) -> Earlier:
        """Return a copy."""
        copied = Earlier()
        copied.merge(self)
        return copied

    def merge(self, other: Earlier) -> None:
        """Add the reads of another object."""
        self.runs += other.runs
        self.reprocessings += other.reprocessings
        for name in _KEPT:
            spans_of_lane = getattr(self, name)
            for key, spans in getattr(other, name).items():
                for span in spans:
                    spans_of_lane.setdefault(key, Spans()).add(*span)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        kept = {
            name: [
                [*key, [list(span) for span in spans]] for key, spans in sorted(getattr(self, name).items())
            ]
            for name in _KEPT
        }
        return {"runs": self.runs, "reprocessings": self.reprocessings, **kept}

    @classmethod
    def of_horizon(cls, horizon: Horizon) -> Earlier:
        """Return the reads of a pipeline's pruned runs, from the JSON form.

        :raises LedgerUnreadable: the horizon's reads are not of that form.
        """
        data = horizon.read
        try:
            earlier = cls(integer(data.get("runs", 0), 0), integer(data.get("reprocessings", 0), 0))
            for name in _KEPT:
                for topic, topic_id, partition, spans in data.get(name, ()):
                    lane = LaneKey(text(topic), text(topic_id), integer(partition, 0))
                    lane_spans = getattr(earlier, name).setdefault(lane, Spans())
                    for start, end in spans:
                        lane_spans.add(integer(start, 0), integer(end, 0))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            key = keys.horizon_key(horizon.pipeline)
            raise LedgerUnreadable(
                f"the ledger's record {key!r} is not a horizon: {type(error).__name__}: {error}"
            ) from error
        return earlier

    def has_read_of(self, record: RunRecord) -> bool:
        """Return whether it holds a first read of any offset that a record read."""
        return any(
            self.read[key].within(start, end)
            for key, start, end, _ in reads_of(record, {}, ())
            if key in self.read
        )

    def add(self, record: RunRecord) -> None:
        """Merge the reads of a record; call it in commit order."""
        self.runs += 1
        self.reprocessings += keys.REPROCESS_MARK in record.run_key
        for key, start, end, on_purpose in reads_of(record, {}, ()):
            if on_purpose:
                self.again.setdefault(key, Spans()).add(start, end)
                continue
            read = self.read.setdefault(key, Spans())
            for double in read.within(start, end):
                self.overlaps.setdefault(key, Spans()).add(*double)
            read.add(start, end)
        for key, start, end in left_out_of(record, {}):
            self.left_out.setdefault(key, Spans()).add(start, end)


def folded(
    earlier: Earlier, records: Iterable[RunRecord], *, one_by_one: int = DRAWN_ONE_BY_ONE
) -> tuple[list[RunRecord], Earlier]:
    """Return the runs to draw one by one, in commit order, and the merged reads of all others.

    The newest are drawn, and those that read something on purpose or again, so that the sentence counts and
    names them. Any other old run is narrower than a pixel.

    :param earlier: reads of runs whose records are no longer kept.
    :param records: the records that are kept, in commit order.
    """
    kept = list(records)
    merged, older = earlier.copy(), earlier.copy()
    named = []
    for record in kept[:-one_by_one]:
        if is_on_purpose(record) or older.has_read_of(record):
            named.append(record)
        else:
            merged.add(record)
        older.add(record)
    return [*named, *kept[-one_by_one:]], merged
