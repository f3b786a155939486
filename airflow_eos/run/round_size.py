"""The size of a cursor's round: where its ranges end under ``max_records``."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.ports import Cluster


def bounded_to_data(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    max_records: int | None,
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
