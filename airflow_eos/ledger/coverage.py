"""What the runs of a pipeline have read, offset by offset, and one sentence that says whether it is whole.

Computed from run records alone, and from where each log begins and ends now: no client, no clock. Offsets of
a topic that was made again are others than those of before: a lane belongs to one topic id.

Each offset should be in the ranges of one run. Reads on purpose come on top and count as neither overlap nor
gap: reprocessings, ranges that somebody gave, and what a cursor reads again after a reset.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from airflow_eos.ledger import keys
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.record import TOPIC_IDS, RunRecord

_PLACES_SHOWN = 3  # in the sentence
_WORK, _LOSS = "work", "accepted_loss"


class Kind(enum.Enum):
    """What happened to some offsets of one lane."""

    READ = "read"
    """By one run."""
    AGAIN = "again"
    """Once more, on purpose."""
    GAP = "gap"
    """By no run, though runs have read before and behind them."""
    OVERLAP = "overlap"
    """By several runs."""
    LEFT_OUT = "left out"
    """By no run, on purpose: skipped, lost and accepted, or passed over by a reset."""
    BEFORE = "before"
    """Not yet, and they lie before the first range."""
    UNREAD = "unread"
    """Not yet."""
    BEYOND = "beyond"
    """By a run, though the log ends below them now."""


WRONG = (Kind.GAP, Kind.OVERLAP, Kind.BEYOND)


class LaneKey(NamedTuple):
    """One partition of one incarnation of a topic.

    :param topic_id: empty where records do not name it and the topic is gone.
    """

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Where a partition's log begins, and its last stable offset."""

    log_start: int
    stable: int


@dataclass(frozen=True, slots=True)
class Reset:
    """A cursor that was moved by hand.

    :param moment: when, as records spell it.
    :param changes: of each partition, from where to where.
    """

    moment: str
    changes: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def from_dict(cls, moment: str, data: Mapping[str, Any]) -> Reset:
        """Read what a reset left in the ledger.

        :raises ValueError, LookupError, TypeError: it is something else.
        """
        changes = {}
        for tp, committed, recorded, offset in data["changes"]:
            topic, _, partition = str(tp).rpartition("-")
            known = [one for one in (committed, recorded) if isinstance(one, int)]
            if known:
                changes[TopicPartition(topic, int(partition))] = max(known), int(offset)
        return cls(moment, changes)


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets ``[start, end)`` of one lane that share a fate.

    :param runs: keys of the runs that read them; empty for those that are no longer kept one by one.
    :param deleted: the log begins behind them now.
    """

    start: int
    end: int
    kind: Kind
    runs: tuple[str, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One source partition.

    :param bounds: of the log now; None: this topic, or this incarnation of it, is gone.
    :param segments: in order of offsets, without a hole between the first and the last.
    :param again: reads on purpose; they lie above the others, and may overlap each other.
    """

    key: LaneKey
    bounds: LogBounds | None
    segments: tuple[Segment, ...]
    again: tuple[Segment, ...] = ()

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.key.topic, self.key.partition)

    @property
    def unread(self) -> int:
        """Offsets behind the last range: an upper bound of the records."""
        return sum(one.end - one.start for one in self.segments if one.kind is Kind.UNREAD)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What all runs of a pipeline have read.

    :param runs: how many.
    :param sentence: says that it is whole, or what is wrong and where.
    :param problems: what is wrong, in order of partitions and offsets.
    """

    lanes: tuple[Lane, ...]
    runs: int
    sentence: str
    problems: tuple[tuple[Lane, Segment], ...]

    @property
    def is_whole(self) -> bool:
        """Whether each offset between the first and the last was read by exactly one run."""
        return not self.problems

    @property
    def unread(self) -> int:
        """Offsets not read yet, over all partitions."""
        return sum(one.unread for one in self.lanes)


class Spans:
    """Offsets as disjoint ranges, sorted; neighbours are joined."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``[start, end)`` that are in it."""
        found = []
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            found.append((max(start, self._starts[at]), min(end, self._ends[at])))
        return found

    def outside(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``[start, end)`` that are not."""
        found, at = [], start
        for inner, after in self.within(start, end):
            if at < inner:
                found.append((at, inner))
            at = after
        return [*found, (at, end)] if at < end else found

    def add(self, start: int, end: int) -> None:
        """Put a range in."""
        if start >= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]


_KEPT = ("read", "overlaps", "again", "left_out")


@dataclass(slots=True)
class Earlier:
    """What older runs have read, of which records are no longer kept: :meth:`add` forgets one.

    It grows with the number of holes, not of runs.

    :param runs: how many.
    :param reprocessings: of them.
    """

    runs: int = 0
    reprocessings: int = 0
    read: dict[LaneKey, Spans] = field(default_factory=dict)
    overlaps: dict[LaneKey, Spans] = field(default_factory=dict)
    again: dict[LaneKey, Spans] = field(default_factory=dict)
    left_out: dict[LaneKey, Spans] = field(default_factory=dict)

    def copy(self) -> Earlier:
        """Return another one that holds the same."""
        made = Earlier()
        made.merge(self)
        return made

    def merge(self, other: Earlier) -> None:
        """Add what another one holds."""
        self.runs += other.runs
        self.reprocessings += other.reprocessings
        for name in _KEPT:
            mine = getattr(self, name)
            for key, spans in getattr(other, name).items():
                for span in spans:
                    mine.setdefault(key, Spans()).add(*span)

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
    def from_dict(cls, data: Mapping[str, Any]) -> Earlier:
        """Read the JSON form.

        :raises ValueError: it is none; or LookupError, or TypeError.
        """
        made = cls(int(data.get("runs", 0)), int(data.get("reprocessings", 0)))
        for name in _KEPT:
            for topic, topic_id, partition, spans in data.get(name, ()):
                its = getattr(made, name).setdefault(LaneKey(topic, topic_id, partition), Spans())
                for start, end in spans:
                    its.add(start, end)
        return made

    def is_plain(self, record: RunRecord) -> bool:
        """Whether it read nothing on purpose, and nothing that these have read: its name explains nothing."""
        return not is_on_purpose(record) and not any(
            self.read[key].within(start, end)
            for key, start, end, _ in _reads(record, {}, ())
            if key in self.read
        )

    def add(self, record: RunRecord) -> None:
        """Keep of a record where it read; records come in the order of their commits."""
        self.runs += 1
        self.reprocessings += keys.REPROCESS_MARK in record.run_key
        for key, start, end, on_purpose in _reads(record, {}, ()):
            if on_purpose:
                self.again.setdefault(key, Spans()).add(start, end)
                continue
            read = self.read.setdefault(key, Spans())
            for double in read.within(start, end):
                self.overlaps.setdefault(key, Spans()).add(*double)
            read.add(start, end)
        for key, start, end in _left_out(record, {}):
            self.left_out.setdefault(key, Spans()).add(start, end)


def coverage_of(
    records: Iterable[RunRecord],
    bounds: Mapping[TopicPartition, LogBounds],
    topic_ids: Mapping[str, str],
    *,
    resets: Sequence[Reset] = (),
    earlier: Earlier | None = None,
) -> Coverage:
    """Compute what the runs of one pipeline have read.

    :param records: all its runs, in the order of their commits.
    :param bounds: of every partition of the source topics as they are now.
    :param topic_ids: of the source topics as they are now.
    :param resets: of its cursor.
    :param earlier: what runs have read that are not among the records.
    """
    known = list(records)
    earlier = earlier or Earlier()
    lanes = _Lanes(topic_ids)
    for tp in bounds:
        lanes.of_topic(tp)
    lanes.take_earlier(earlier, resets)
    for record in known:
        lanes.take(record, resets)
    for reset in resets:
        for tp, (was, to) in reset.changes.items():
            if was < to:
                lanes.of_topic(tp).left_out.append((was, to))
    made = lanes.made(bounds)
    problems = tuple((one, it) for one in made for it in one.segments if it.kind in WRONG)
    runs = len(known) + earlier.runs
    return Coverage(made, runs, _sentence(made, runs, problems, earlier.reprocessings), problems)


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


def _reads(
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


def _left_out(record: RunRecord, topic_ids: Mapping[str, str]) -> Iterator[tuple[LaneKey, int, int]]:
    """Yield what a run was told to leave out, or found deleted and accepted."""
    losses = record.details.get(_LOSS)
    for one in losses if isinstance(losses, Sequence) and not isinstance(losses, str) else ():
        try:
            topic, partition, start, end = one["topic"], one["partition"], one["start"], one["end"]
        except (LookupError, TypeError):
            continue
        if all(type(number) is int for number in (partition, start, end)) and 0 <= start < end:
            yield _lane_key(record, str(topic), partition, topic_ids), start, end


_Read = tuple[int, int, tuple[str, ...]]


@dataclass(slots=True)
class _Building:
    """A lane before its segments are known."""

    reads: list[_Read] = field(default_factory=list)
    on_purpose: list[_Read] = field(default_factory=list)
    left_out: list[tuple[int, int]] = field(default_factory=list)

    def lane(self, key: LaneKey, bounds: LogBounds | None) -> Lane:
        # What was read on purpose is a first read where nobody else has read.
        read, again = Spans(), []
        for start, end, _ in self.reads if self.on_purpose else ():
            read.add(start, end)
        reads = list(self.reads)
        for start, end, runs in self.on_purpose:
            again += [Segment(*part, Kind.AGAIN, runs) for part in read.within(start, end)]
            for part in read.outside(start, end):
                reads.append((*part, runs))
                read.add(*part)
        return Lane(key, bounds, tuple(self._segments(reads, bounds)), tuple(again))

    def _segments(self, reads: Sequence[_Read], bounds: LogBounds | None) -> Iterator[Segment]:
        log_start, stable = (bounds.log_start, bounds.stable) if bounds else (0, 0)
        if not reads:
            if log_start < stable:
                yield Segment(log_start, stable, Kind.UNREAD)
            return
        first, last = min(one[0] for one in reads), max(one[1] for one in reads)
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
        """Yield ``[first, last)`` cut wherever something begins or ends."""
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for number, (start, end, _) in enumerate(reads):
            begins.setdefault(start, []).append(number)
            ends.setdefault(end, []).append(number)
        left_out = Spans()
        for start, end in self.left_out:
            left_out.add(start, end)
        cuts = {*begins, *ends, *(at for span in left_out for at in span)}
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
                kind = Kind.LEFT_OUT if left_out.within(start, end) else Kind.GAP
            else:
                kind = Kind.READ if len(active) == 1 else Kind.OVERLAP
            yield start, end, kind, runs


class _Lanes:
    """Collects what was read, lane by lane.

    :param topic_ids: of the topics as they are now.
    """

    def __init__(self, topic_ids: Mapping[str, str]) -> None:
        self._topic_ids = topic_ids
        self._building: dict[LaneKey, _Building] = {}

    def of_topic(self, tp: TopicPartition) -> _Building:
        """Return the lane of a partition as it is now."""
        return self._at(LaneKey(tp.topic, "", tp.partition))

    def take(self, record: RunRecord, resets: Sequence[Reset]) -> None:
        """Add what a run has read."""
        for key, start, end, on_purpose in _reads(record, self._topic_ids, resets):
            lane = self._at(key)
            (lane.on_purpose if on_purpose else lane.reads).append((start, end, (record.run_key,)))
        for key, start, end in _left_out(record, self._topic_ids):
            self._at(key).left_out.append((start, end))

    def take_earlier(self, earlier: Earlier, resets: Sequence[Reset]) -> None:
        """Add what runs have read of which there are no records."""
        for key, spans in earlier.read.items():
            self._at(key).reads += [(*span, ()) for span in spans]
        for key, spans in earlier.overlaps.items():
            set_back = Spans()
            for reset in resets:
                was, to = reset.changes.get(TopicPartition(key.topic, key.partition), (0, 0))
                set_back.add(to, was)
            for span in spans:
                # Nobody knows any more which of the runs was before the reset.
                self._at(key).reads += [(*part, ()) for part in set_back.outside(*span)]
                self._at(key).on_purpose += [(*part, ()) for part in set_back.within(*span)]
        for key, spans in earlier.again.items():
            self._at(key).on_purpose += [(*span, ()) for span in spans]
        for key, spans in earlier.left_out.items():
            self._at(key).left_out += list(spans)

    def made(self, bounds: Mapping[TopicPartition, LogBounds]) -> tuple[Lane, ...]:
        """Return all lanes, sorted."""
        lanes = []
        for key, one in sorted(self._building.items()):
            is_now = bool(key.topic_id) and self._topic_ids.get(key.topic) == key.topic_id
            lanes.append(
                one.lane(key, bounds.get(TopicPartition(key.topic, key.partition)) if is_now else None)
            )
        return tuple(lanes)

    def _at(self, key: LaneKey) -> _Building:
        # A record that does not name the topic's id read the one that is there now.
        named = key if key.topic_id else key._replace(topic_id=self._topic_ids.get(key.topic, ""))
        return self._building.setdefault(named, _Building())


# -- the sentence -----------------------------------------------------------------------------------------


def _sentence(
    lanes: Sequence[Lane], runs: int, problems: Sequence[tuple[Lane, Segment]], reprocessings: int
) -> str:
    if not runs:
        return "No run is committed"
    counted = "1 run" if runs == 1 else f"{runs:,} runs"
    parts = [one for one in lanes if any(it.kind not in (Kind.UNREAD, Kind.BEFORE) for it in one.segments)]
    if not parts:
        return f"{counted} had nothing to read"
    if problems:
        return f"{_counts(problems)} in what {counted} read: {_places(problems)}"
    seen = [it for one in parts for it in one.segments if it.kind not in (Kind.UNREAD, Kind.BEFORE)]
    first, last = min(it.start for it in seen), max(it.end for it in seen) - 1
    partitions = "1 partition" if len(parts) == 1 else f"{len(parts):,} partitions"
    again = {run for one in parts for it in one.again for run in it.runs}
    only_again = again - {run for it in seen for run in it.runs}
    tiling = runs - len(only_again) - reprocessings
    repeating = len(again) + reprocessings
    counted = "1 run" if tiling == 1 else f"{tiling:,} runs"
    left_out = sum(it.kind is Kind.LEFT_OUT for it in seen)
    notes = [
        *([f"{_some(repeating, 'run')} read some of it again, on purpose"] if repeating else []),
        *([f"{_some(left_out, 'range')} left out on purpose"] if left_out else []),
    ]
    verb = "tiles" if tiling == 1 else "tile"
    whole = f"{counted} {verb} offsets {first:,} to {last:,} of {partitions} without gap or overlap"
    return "; ".join((whole, *notes))


def _some(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_NAMES = {
    Kind.GAP: ("gap", "gaps"),
    Kind.OVERLAP: ("overlap", "overlaps"),
    Kind.BEYOND: ("range behind the end of its log", "ranges behind the end of their log"),
}


def _counts(problems: Sequence[tuple[Lane, Segment]]) -> str:
    numbers = {kind: sum(it.kind is kind for _, it in problems) for kind in WRONG}
    return " and ".join(
        f"{number:,} {_NAMES[kind][number != 1]}" for kind, number in numbers.items() if number
    )


def _places(problems: Sequence[tuple[Lane, Segment]]) -> str:
    said = [place(*one) for one in problems[:_PLACES_SHOWN]]
    more = len(problems) - len(said)
    return "; ".join(said) + (f"; and {more:,} more" if more else "")


def place(lane: Lane, it: Segment) -> str:
    """Say what is wrong with a segment, and where."""
    span = (
        f"offset {it.start:,}" if it.end - it.start == 1 else f"offsets {it.start:,} to {it.end - 1:,}"
    ) + f" of {lane.where}"
    verb = "was" if it.end - it.start == 1 else "were"
    if it.kind is Kind.GAP:
        gone = (
            ", and are deleted" if it.deleted and verb == "were" else ", and is deleted" if it.deleted else ""
        )
        return f"{span} {verb} read by no run{gone}"
    if it.kind is Kind.OVERLAP:
        by = f"{len(it.runs)} runs" if len(it.runs) > 1 else "several runs"
        return f"{span} {verb} read by {by}"
    assert lane.bounds is not None
    return f"{span} {verb} read, and the log ends at {lane.bounds.stable:,} now"
