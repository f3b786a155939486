"""The cursor: a group's next offsets, kept in the ledger in addition to the group's committed offsets.

Group offsets expire when a group is idle; ledger records do not. A cursor record is written in the same
transaction as the output, so it can never be behind or ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord, Layout
from airflow_eos.model.ledger import LedgerId, LedgerMessage
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.spec import RunSpec


def layout_of(spec: RunSpec) -> Layout:
    """Return the layout of a spec's cursor."""
    return "whole" if spec.source_partition is None else "mapped"


def advanced(
    spec: RunSpec,
    plan: RunPlan,
    before: CursorRecord | None,
    partition_counts: Mapping[str, int],
    run_key: str,
    ledger: LedgerId,
) -> CursorRecord:
    """Return the cursor after the plan's run."""
    move = CursorRecord(
        group=spec.group_id,
        pipeline=spec.pipeline,
        prefix=spec.prefix,
        layout=layout_of(spec),
        ends=plan.ends,
        topic_ids=plan.topic_ids,
        partition_counts=partition_counts,
        run_key=run_key,
        ledger_topic_id=ledger.topic_id,
        ledger_partitions=ledger.partitions,
        origin=spec.origin,
        epochs=plan.epochs,
    )
    return after_move(before, move)


def after_move(before: CursorRecord | None, move: CursorRecord) -> CursorRecord:
    """Return a cursor after a move; partitions that the move does not name keep their offset and epoch.

    A known partition count stays: a move may name only some of the partitions, and an added partition must
    not count as known before it was read. The count of a topic that was created again is replaced.
    """
    if before is None:
        return move
    counts = dict(before.partition_counts)
    for name, count in move.partition_counts.items():
        if name not in counts or before.topic_ids.get(name) != move.topic_ids[name]:
            counts[name] = count
    kept = {tp: epoch for tp, epoch in before.epochs.items() if tp not in move.ends}
    return replace(
        move,
        ends={**before.ends, **move.ends},
        topic_ids={**before.topic_ids, **move.topic_ids},
        partition_counts=counts,
        origin=move.origin or before.origin,
        epochs={**kept, **move.epochs},
    )


def messages(spec: RunSpec, after: CursorRecord, layout_known: bool) -> list[LedgerMessage]:
    """Return the ledger messages that move the cursor.

    A mapped cursor has one record per partition and a record, written once, that names the layout.
    """
    partition = keys.mapped_partition(spec)
    moves = [LedgerMessage(keys.cursor_key(spec.group_id, partition), after.to_json(), spec.group_id)]
    if partition is not None and not layout_known:
        layout = replace(after, ends={}, epochs={})
        moves.append(LedgerMessage(keys.cursor_key(spec.group_id), layout.to_json(), spec.group_id))
    return moves
