"""Computes which offsets the runs of a pipeline have read, and a sentence that says whether that is complete.

The inputs are run records and the current bounds of each log; there is no client and no clock. A topic that
was created again has new offsets, so a lane belongs to one topic id.

Each offset should be in the ranges of exactly one run. Reads on purpose are separate and count as neither
overlap nor gap: reprocessings, explicit ranges, and offsets that a cursor reads again after a reset.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.lanes import WRONG, Kind, Lane, LaneKey, LogBounds, Reset, Segment
from airflow_eos.coverage.offset_set import Spans
from airflow_eos.coverage.reads import is_on_purpose, left_out_of, reads_of
from airflow_eos.coverage.sentence import sentence
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.output import NOT_COUNTED
from airflow_eos.model.ranges import TopicPartition


@dataclass(frozen=True, slots=True)
class Coverage:
    """The offsets that all runs of a pipeline have read.

    :param reprocessings: reprocessings among the runs whose records are no longer kept.
    :param unseen: source topics whose logs are not known: this principal may not Describe them, or a
        partition has no leader.
    """

    lanes: tuple[Lane, ...]
    runs: int
    unseen: tuple[str, ...] = ()
    reprocessings: int = 0

    @property
    def problems(self) -> tuple[tuple[Lane, Segment], ...]:
        """Gaps, overlaps and reads beyond the log end, ordered by partition and offset."""
        return tuple((lane, part) for lane in self.lanes for part in lane.segments if part.kind in WRONG)

    @property
    def sentence(self) -> str:
        """Says that the coverage is complete, or what is wrong and where."""
        return sentence(self.lanes, self.runs, self.problems, self.reprocessings)

    @property
    def is_whole(self) -> bool:
        """Whether each offset between the first and the last was read by exactly one run.

        False if that is unknown, because the log of a source topic is not known.
        """
        return not self.problems and not self.unseen

    @property
    def unread(self) -> int:
        """Unread offsets over all partitions; -1 if the log of a topic is not known."""
        return NOT_COUNTED if self.unseen else sum(lane.unread for lane in self.lanes)

    def of_topics(self, topics: Collection[str]) -> Coverage:
        """Return the coverage of these topics only; the number of runs stays that of all runs."""
        lanes = tuple(lane for lane in self.lanes if lane.topic_partition.topic in topics)
        if len(lanes) == len(self.lanes):
            return self
        return replace(self, lanes=lanes, unseen=tuple(topic for topic in self.unseen if topic in topics))


def coverage_of(
    records: Collection[RunRecord],
    bounds: Mapping[TopicPartition, LogBounds],
    topic_ids: Mapping[str, str],
    *,
    resets: Sequence[Reset] = (),
    earlier: Earlier | None = None,
) -> Coverage:
    """Compute which offsets the runs of one pipeline have read.

    :param records: all its run records, in commit order.
    :param bounds: current log bounds of every partition of the source topics.
    :param earlier: reads of runs that are not among the records.
    """
    earlier = earlier or Earlier()
    lanes = _Lanes(topic_ids)
    for tp in bounds:
        lanes.of_topic(tp)
    lanes.take_earlier(earlier, resets)
    for record in records:
        lanes.take(record, resets)
    for reset in resets:
        for tp, (was, to) in reset.changes.items():
            if was < to:
                lanes.of_topic(tp).left_out.add(was, to)
    runs = len(records) + earlier.runs
    return Coverage(lanes.build(bounds), runs, reprocessings=earlier.reprocessings)


_Read = tuple[int, int, tuple[str, ...]]


@dataclass(slots=True)
class _Building:
    """The reads of a lane, before its segments are computed.

    :param reads: reads of cursors, intervals and partitions.
    :param after_reset: reads of a cursor to which a reset had moved it back.
    :param asked_for: reads of reprocessings and explicit ranges.
    """

    reads: list[_Read] = field(default_factory=list)
    after_reset: list[_Read] = field(default_factory=list)
    asked_for: list[_Read] = field(default_factory=list)
    left_out: Spans[int] = field(default_factory=Spans)

    def lane(self, key: LaneKey, bounds: LogBounds | None) -> Lane:
        # A read on purpose is a first read where no other run has read. The cursor's own reads are added
        # first, regardless of commit order, so that the result is the same once their records are no longer
        # kept.
        read, repeated = Spans(), []
        on_purpose = (*self.after_reset, *self.asked_for)
        for start, end, _ in self.reads if on_purpose else ():
            read.add(start, end)
        reads = list(self.reads)
        for start, end, runs in on_purpose:
            repeated += [Segment(*part, Kind.AGAIN, runs) for part in read.within(start, end)]
            for part in read.outside(start, end):
                reads.append((*part, runs))
                read.add(*part)
        return Lane(key, bounds, tuple(self._segments(reads, bounds)), tuple(repeated))

    def _segments(self, reads: Sequence[_Read], bounds: LogBounds | None) -> Iterator[Segment]:
        log_start, stable = (bounds.log_start, bounds.stable) if bounds else (0, 0)
        if not reads:
            if log_start < stable:
                yield Segment(log_start, stable, Kind.UNREAD)
            return
        first, last = min(start for start, _, _ in reads), max(end for _, end, _ in reads)
        if bounds and log_start < first:
            yield Segment(log_start, min(first, stable), Kind.BEFORE)
            if stable < first:
                yield Segment(stable, first, Kind.BEYOND)
        for start, end, kind, runs in self._pieces(reads, first, last, bounds):
            beyond = bounds is not None and start >= stable and kind in (Kind.READ, Kind.OVERLAP)
            deleted = bounds is not None and end <= log_start
            yield Segment(start, end, Kind.BEYOND if beyond else kind, runs, deleted)
        if bounds and last < stable:
            yield Segment(max(last, log_start), stable, Kind.UNREAD)

    def _pieces(
        self, reads: Sequence[_Read], first: int, last: int, bounds: LogBounds | None
    ) -> Iterator[tuple[int, int, Kind, tuple[str, ...]]]:
        """Yield ``[first, last)``, cut at each begin and end of a read, a left-out range and the log."""
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for number, (start, end, _) in enumerate(reads):
            begins.setdefault(start, []).append(number)
            ends.setdefault(end, []).append(number)
        cuts = {*begins, *ends, *(at for span in self.left_out for at in span)}
        if bounds:
            cuts |= {bounds.log_start, bounds.stable}
        points = sorted(at for at in cuts if first <= at <= last)
        active: dict[int, None] = {}
        for start, end in itertools.pairwise(points):
            for number in ends.get(start, ()):
                active.pop(number, None)
            active.update(dict.fromkeys(begins.get(start, ())))
            runs = tuple(run for number in active for run in reads[number][2])
            if not active:
                kind = Kind.LEFT_OUT if self.left_out.within(start, end) else Kind.GAP
            else:
                kind = Kind.READ if len(active) == 1 else Kind.OVERLAP
            yield start, end, kind, runs


class _Lanes:
    """Collects reads by lane."""

    def __init__(self, topic_ids: Mapping[str, str]) -> None:
        self._topic_ids = topic_ids
        self._building: dict[LaneKey, _Building] = {}

    def of_topic(self, tp: TopicPartition) -> _Building:
        """Return the lane of a partition of the current topic."""
        return self._at(LaneKey(tp.topic, "", tp.partition))

    def take(self, record: RunRecord, resets: Sequence[Reset]) -> None:
        """Add the reads of a run."""
        asked_for = is_on_purpose(record)
        for key, start, end, on_purpose in reads_of(record, self._topic_ids, resets):
            lane = self._at(key)
            reads = lane.asked_for if asked_for else lane.after_reset if on_purpose else lane.reads
            reads.append((start, end, (record.run_key,)))
        for key, start, end in left_out_of(record, self._topic_ids):
            self._at(key).left_out.add(start, end)

    def take_earlier(self, earlier: Earlier, resets: Sequence[Reset]) -> None:
        """Add the reads of runs whose records are no longer kept."""
        for key, spans in earlier.read.items():
            self._at(key).reads += [(*span, ()) for span in spans]
        for key, spans in earlier.overlaps.items():
            set_back = Spans()
            for reset in resets:
                was, to = reset.changes.get(TopicPartition(key.topic, key.partition), (0, 0))
                set_back.add(to, was)
            for span in spans:
                # Which of the runs came before the reset is no longer known.
                self._at(key).reads += [(*part, ()) for part in set_back.outside(*span)]
                self._at(key).after_reset += [(*part, ()) for part in set_back.within(*span)]
        for key, spans in earlier.again.items():
            self._at(key).asked_for += [(*span, ()) for span in spans]
        for key, spans in earlier.left_out.items():
            for span in spans:
                self._at(key).left_out.add(*span)

    def build(self, bounds: Mapping[TopicPartition, LogBounds]) -> tuple[Lane, ...]:
        """Return all lanes, sorted."""
        lanes = []
        for key, building in sorted(self._building.items()):
            is_current = bool(key.topic_id) and self._topic_ids.get(key.topic) == key.topic_id
            current = bounds.get(TopicPartition(key.topic, key.partition)) if is_current else None
            lanes.append(building.lane(key, current))
        return tuple(lanes)

    def _at(self, key: LaneKey) -> _Building:
        # A record that does not name a topic id is taken to have read the current topic.
        named = key if key.topic_id else key._replace(topic_id=self._topic_ids.get(key.topic, ""))
        return self._building.setdefault(named, _Building())
