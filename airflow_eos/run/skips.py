"""Removes unreadable offsets from a plan, and notes that in the run's record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import OffsetRange


def without(plan: RunPlan, skip_offsets: Sequence[OffsetRange]) -> RunPlan:
    """Return the plan without these offsets; its start and end stay.

    Each range becomes the pieces around the skipped offsets. An empty piece keeps the cursor's start
    or end.
    """
    left: list[OffsetRange] = []
    skipped: list[OffsetRange] = []
    for whole in plan.ranges:
        pieces, cut = _pieces(whole, (s for s in skip_offsets if s.topic_partition == whole.topic_partition))
        left += pieces
        skipped += cut
    if not skipped:
        return plan
    notes = [
        f"{r.topic_partition}: offsets {r.start} to {r.end - 1} are skipped (skip_offsets)" for r in skipped
    ]
    loss: list[dict[str, Any]] = [
        {"topic": r.topic, "partition": r.partition, "start": r.start, "end": r.end, "skipped": True}
        for r in skipped
    ]
    return replace(
        plan,
        ranges=tuple(left),
        notes=(*plan.notes, *notes),
        accepted_loss=(*plan.accepted_loss, *loss),
    )


def _pieces(
    whole: OffsetRange, skip_offsets: Iterable[OffsetRange]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    left: list[OffsetRange] = []
    skipped: list[OffsetRange] = []
    position = whole.start
    for skip in sorted(skip_offsets):
        start, end = max(skip.start, position), min(skip.end, whole.end)
        if start >= end:
            continue
        if position < start:
            left.append(replace(whole, start=position, end=start))
        skipped.append(replace(whole, start=start, end=end))
        position = end
    if not skipped:
        return [whole], []
    if position < whole.end:
        left.append(replace(whole, start=position))
    if not left or left[0].start > whole.start:
        left.insert(0, replace(whole, end=whole.start))
    if left[-1].end < whole.end:
        left.append(replace(whole, start=whole.end))
    return left, skipped
