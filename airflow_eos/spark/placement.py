"""Assigns work to tasks: slices of the ranges, and one owner task for every target partition.

Broker state is per (producer id, partition), so several writers can share one producer identity if each
partition has one owner. The driver computes the layout once and pickles it with the seal tasks; topics that
only rows name are placed by a hash.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_eos.model.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

TASKS_PER_SLOT = 2


@dataclass(frozen=True, slots=True)
class OwnerLayout:
    """Owner task of every target partition.

    :param declared: owner per partition of the topics that the driver knows.
    """

    tasks: int
    declared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def owner(self, topic: str, partition: int) -> int:
        """Return the number of the task that writes this partition, below ``tasks``."""
        declared = self.declared.get(topic)
        if declared is not None and partition < len(declared):
            return declared[partition]
        return (zlib.crc32(topic.encode()) + partition) % self.tasks


def plan_owners(leaders: Mapping[str, Mapping[int, int]], slots: int, undeclared: int = 0) -> OwnerLayout:
    """Spread the declared partitions over at most ``2 * slots`` tasks, so that each task has few leaders.

    :param leaders: leader's node id by topic and partition.
    :param undeclared: minimum number of tasks, within the limit, for topics that only rows name; 0 for none.
    """
    limit = max(1, TASKS_PER_SLOT * slots)
    ordered = sorted(
        (leader, topic, partition) for topic, parts in leaders.items() for partition, leader in parts.items()
    )
    tasks = min(max(len(ordered), undeclared, 1), limit)
    owners: dict[str, dict[int, int]] = {}
    for position, (_, topic, partition) in enumerate(ordered):
        owners.setdefault(topic, {})[partition] = position * tasks // len(ordered)
    return OwnerLayout(tasks, {topic: tuple(by[p] for p in sorted(by)) for topic, by in owners.items()})


_MASK = 0xFFFFFFFF
_SEED = 42


def route(df: DataFrame, tasks: int) -> DataFrame:
    """Return the rows of owner i in partition i of ``tasks``, which Spark does not coalesce.

    ``repartitionById`` (Spark 4.1) takes the number itself. Older versions hash, so each number is replaced
    by a key whose hash (Murmur3 x86 32 with seed 42, on an int) leads there.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(tasks, "owner")
    return route_by_hash(df, tasks)


def route_by_hash(df: DataFrame, tasks: int) -> DataFrame:
    """Like :func:`route`, by hash keys, for Spark 4.0."""
    from pyspark.sql import functions as F  # noqa: N812 - the field's own name for it

    keys = F.array(*[F.lit(k) for k in hash_keys(tasks)])
    return df.repartition(tasks, F.element_at(keys, F.col("owner") + F.lit(1)))


def hash_keys(tasks: int) -> list[int]:
    """Return for each partition an int that Spark's hash partitioning maps to it."""
    keys: dict[int, int] = {}
    candidate = 0
    while len(keys) < tasks:
        keys.setdefault(_spark_hash(candidate) % tasks, candidate)
        candidate += 1
    return [keys[i] for i in range(tasks)]


def _spark_hash(value: int) -> int:
    """``Murmur3_x86_32.hashInt(value, 42)`` as a signed number, as Spark's ``Pmod`` sees it."""
    mixed = _rotated((value * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK
    hashed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    hashed ^= 4  # bytes hashed
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


MIN_SPAN = 20_000
"""Offsets below which a slice is not worth a task of its own."""
SLICE_COST = 1_000
"""Fixed cost of a slice (an entry in a request, a call of the process), in offsets."""
PACKED_WEIGHT = 200_000
"""Offsets, including the cost of the slices, per task that several slices share."""


def plan_slices(ranges: Iterable[OffsetRange], slots: int, min_span: int = MIN_SPAN) -> list[OffsetRange]:
    """Split ranges so that ``slots`` tasks share the offsets evenly; empty ranges disappear.

    Slices keep the order of ranges and offsets, so the numbers of their tasks have the order of the records.

    :param slots: tasks that can run at once.
    """
    wanted = [r for r in ranges if r.span]
    total = sum(r.span for r in wanted)
    slices: list[OffsetRange] = []
    for r in wanted:
        count = min(-(-slots * r.span // total), max(1, r.span // min_span))
        bounds = [r.start + r.span * i // count for i in range(count + 1)]
        slices += [OffsetRange(r.topic, r.partition, start, end) for start, end in pairwise(bounds)]
    return slices


def pack_slices(slices: Sequence[OffsetRange], slots: int) -> tuple[tuple[OffsetRange, ...], ...]:
    """Give each seal task neighbouring slices of about the same total weight, in the order of the slices.

    Adjacent slices of one partition are joined. With no more slices than tasks, each slice has its own.
    """
    weights = [offsets.span + SLICE_COST for offsets in slices]
    total = sum(weights)
    tasks = max(TASKS_PER_SLOT * slots, -(-total // PACKED_WEIGHT))
    if len(slices) <= tasks:
        return tuple((offsets,) for offsets in slices)
    packed: dict[int, list[OffsetRange]] = {}
    while len(packed) < slots:  # again if a few large slices take the place of several tasks
        packed = {}
        before = 0
        for offsets, weight in zip(slices, weights, strict=True):
            # The task in which the slice's middle lies, were all weights laid end to end.
            together = packed.setdefault((2 * before + weight) * tasks // (2 * total), [])
            before += weight
            last = together[-1] if together else None
            if last and (last.topic_partition, last.end) == (offsets.topic_partition, offsets.start):
                together[-1] = OffsetRange(offsets.topic, offsets.partition, last.start, offsets.end)
            else:
                together.append(offsets)
        tasks *= 2
    return tuple(tuple(together) for together in packed.values())
