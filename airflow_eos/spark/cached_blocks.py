"""The locations of cached DataFrame blocks; a block in a new location was computed again.

An executor that does not find a block computes it, stores it, and reports it to the driver before its task
goes on. The locations therefore reveal a second evaluation even before the cluster manager has reported the
loss of an executor, which may take seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_eos.spark.session import block_manager, elements_of

Places = Mapping[int, frozenset[str]]
"""Executors that hold a block, by the number of its partition."""


class CachedBlocks:
    """The blocks of all cached DataFrames of a classic session, as the driver knows them at construction."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._before = {number: self._places(rdd) for number, rdd in self._kept().items()}

    def computed_twice(self, rdds: Collection[int]) -> str | None:
        """Describe a cached block that was computed twice since construction; return None without one.

        :param rdds: ids of the RDDs that were read; others are ignored.
        """
        kept = self._kept()
        for number in sorted(kept.keys() & set(rdds)):
            copies = int(kept[number].getStorageLevel().replication())
            before = self._before.get(number, {})
            for partition, places in self._places(kept[number]).items():
                earlier = before.get(partition, frozenset())
                if len(places) > copies or (earlier and places - earlier):
                    return (
                        f"block {partition} of a cache or lazy checkpoint is on executor "
                        f"{', '.join(sorted(places))}, after {', '.join(sorted(earlier)) or 'none'}: Spark "
                        "computed it again; fill a cache by count() first, checkpoint with eager=True"
                    )
        return None

    def kept(self) -> frozenset[int]:
        """Return the ids of the RDDs that the session keeps now."""
        return frozenset(self._kept())

    def _kept(self) -> dict[int, Any]:
        return {int(number): rdd for number, rdd in self._context._jsc.getPersistentRDDs().items()}  # noqa: SLF001

    def _places(self, rdd: Any) -> Places:
        storage = self._context._jvm.org.apache.spark.storage  # noqa: SLF001
        master = block_manager(self._context).master()
        places = {}
        for partition in range(rdd.getNumPartitions()):
            holders = master.getLocations(storage.RDDBlockId(rdd.id(), partition))
            places[partition] = frozenset(str(holder.executorId()) for holder in elements_of(holders))
        return places
