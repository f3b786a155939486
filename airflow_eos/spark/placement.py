"""Which task writes which target partition: every partition has exactly one owner.

Broker state is per (producer id, partition), so disjoint ownership is what makes one producer identity safe
for many writers. The layout is made once, on the driver, and travels with the seal tasks; topics that only
rows name are placed by a hash that every task computes alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

TASKS_PER_SLOT = 2


@dataclass(frozen=True, slots=True)
class OwnerLayout:
    """Owner task of every target partition.

    :param tasks: number of owner tasks.
    :param declared: owner per partition of the topics known on the driver.
    """

    tasks: int
    declared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def owner(self, topic: str, partition: int) -> int:
        """Return the number of the task that writes this partition, below ``tasks``."""
        known = self.declared.get(topic)
        if known is not None and partition < len(known):
            return known[partition]
        return (zlib.crc32(topic.encode()) + partition) % self.tasks


def plan_owners(leaders: Mapping[str, Mapping[int, int]], slots: int, *, open_ended: bool) -> OwnerLayout:
    """Spread the declared partitions over at most ``2 * slots`` tasks, neighbours by leader.

    A task whose partitions have one leader needs one connection.

    :param leaders: leader's node id per partition and topic.
    :param open_ended: whether rows may name other topics.
    """
    most = max(1, TASKS_PER_SLOT * slots)
    ordered = sorted(
        (leader, topic, partition) for topic, parts in leaders.items() for partition, leader in parts.items()
    )
    tasks = min(max(len(ordered), slots if open_ended or not ordered else 1), most)
    owners: dict[str, dict[int, int]] = {}
    for position, (_, topic, partition) in enumerate(ordered):
        owners.setdefault(topic, {})[partition] = position * tasks // len(ordered)
    return OwnerLayout(tasks, {topic: tuple(by[p] for p in sorted(by)) for topic, by in owners.items()})
