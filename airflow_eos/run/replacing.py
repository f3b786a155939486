"""The rows that a reprocessing replaces in a table: those of the run's earlier commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from airflow_eos.exceptions import OffsetsOutOfRange, TableRewritten
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import REPLACED, TABLE, RunRecord
from airflow_eos.model.iceberg_table import MAIN, IcebergTable
from airflow_eos.model.output import NOT_COUNTED
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec
from airflow_eos.model.table import EarlierRows, TableReceipt


def earlier_rows(
    records: Sequence[RunRecord], sink: str, branch: str | None, uuid: str
) -> tuple[EarlierRows, ...]:
    """Return the rows of a run's committed rounds and reprocessings that are not replaced yet.

    Rows in other sinks stay. The table may have another name by now: its connection was renamed, or its path
    is spelt differently.

    :param uuid: the table's current uuid.
    :raises TableRewritten: the rows are in an earlier table of that name.
    """
    tables = [(record.run_key, record.details[TABLE]) for record in records if TABLE in record.details]
    place = uuid, branch or MAIN
    tables = [
        (key, table)
        for key, table in tables
        if table["sink"] == sink or (table["uuid"], _branch_of(table["sink"])) == place
    ]
    for _, table in tables:
        if table["uuid"] != uuid:
            raise TableRewritten(
                f"{sink} had the id {table['uuid']} when snapshot {table['snapshot']} was written, and has "
                f"{uuid} now: it was recreated, so the earlier rows cannot be told. Use "
                "reprocess='append' if they are not in it"
            )
    replaced = {snapshot for _, table in tables for snapshot in table.get(REPLACED, ())}
    earlier = (EarlierRows(TableReceipt.from_dict(table), file_label(key)) for key, table in tables)
    return tuple(rows for rows in earlier if rows.receipt.files and rows.snapshot not in replaced)


def _branch_of(sink: str) -> str:
    table = IcebergTable.named(sink)
    return MAIN if table is None else table.branch or MAIN


def replaces_rows(spec: RunSpec) -> bool:
    """Return whether the rows of a reprocessing take the place of the earlier ones."""
    return spec.sink is not None and spec.sink.reprocess == "replace"


def refuse_fewer(
    recorded: RunRecord,
    ranges: Iterable[OffsetRange],
    read: Mapping[TopicPartition, int],
    kept_whole: Collection[str],
    sink: str,
) -> None:
    """Refuse a replacement that read fewer records than the run: their rows would be gone.

    :param recorded: the run, merged from all of its rounds.
    :param ranges: of the replacement: those of the run, without offsets that it skips.
    :param read: by partition; a partition that is missing was not read.
    :param kept_whole: topics that lose records only at the log's start, which was compared with the ranges:
        there an unknown count is acceptable if no offset is skipped.
    :raises OffsetsOutOfRange: names the partition and both counts.
    """
    now = {str(tp): count for tp, count in read.items()}
    spans = Counter({r.topic_partition: 0 for r in recorded.ranges if r.topic in kept_whole})
    for r in ranges:
        spans[r.topic_partition] += r.span
    for r in recorded.ranges:
        spans[r.topic_partition] -= r.span
    whole = {str(tp) for tp, more in spans.items() if more >= 0 and tp.topic in kept_whole}
    for place, before in sorted(recorded.records_read_by_partition.items()):
        after = now.get(place, 0)
        is_unknown = NOT_COUNTED in (before, after)
        if place in whole if is_unknown else after >= before:
            continue
        raise OffsetsOutOfRange(
            f"{place}: the run read {_count(before)} records, its reprocessing {_count(after)}: the topic "
            "lost the others (cleanup.policy=compact), or skip_offsets leaves them out, and with "
            f"reprocess='replace' {sink} would lose their rows. Leave the committed output as it is, or "
            "delete the run's rows yourself and use reprocess='append'"
        )


def _count(records: int) -> str:
    return "an unknown number of" if records == NOT_COUNTED else str(records)


def file_label(run_key: str) -> str:
    """Return the first part of the names of a run's data files."""
    return keys.pruned_digest(run_key)
