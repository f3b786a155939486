"""Finds the data files that snapshots of an Iceberg table added, provided that all of them are unchanged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.table import TableReceipt
from airflow_eos.sinks.rewritten import refuse_other_files, rewritten


def files_as_added(
    table: Table, branch: str, receipts: Sequence[TableReceipt], sink: IcebergTable
) -> list[DataFile]:
    """Return the live data files of a branch that these snapshots added.

    A manifest entry names the snapshot that added its file, even after the manifest is rewritten and the
    snapshot expired (Iceberg's specification, "Manifests"). Compaction and copy-on-write updates or deletes
    replace files; position and equality deletes leave them and add delete files.

    :raises TableRewritten: not all of the files are there, or rows of them are deleted.
    """
    if not receipts:
        return []
    files: dict[int, list[DataFile]] = {receipt.snapshot: [] for receipt in receipts}
    head = table.metadata.snapshot_by_name(branch)
    has_deletes = False
    for manifest in [] if head is None else head.manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            has_deletes = True
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.snapshot_id in files:
                files[entry.snapshot_id].append(entry.data_file)
    for receipt in receipts:
        rows = [file.record_count for file in files[receipt.snapshot]]
        refuse_other_files(sink, receipt, rows, "snapshot", "compaction")
    all_files = [file for of_snapshot in files.values() for file in of_snapshot]
    schema, specs = table.schema(), table.specs()
    for partition in {field for file in all_files for field in specs[file.spec_id].fields}:
        if schema.find_column_name(partition.source_id) is None:
            raise rewritten(
                sink,
                f"the run's data files are partitioned by {partition.name!r}, which is made of a column that "
                "was dropped since, and pyiceberg removes no such file",
            )
    if has_deletes and head is not None:
        _refuse_deleted(table, head.snapshot_id, {file.file_path for file in all_files}, sink)
    return all_files


def _refuse_deleted(table: Table, snapshot_id: int, paths: Collection[str], sink: IcebergTable) -> None:
    """Refuse files to which a delete file applies: replacing them would ignore rows that somebody deleted."""
    try:
        tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
    except (NotImplementedError, ValueError) as error:
        # pyiceberg cannot plan a scan of a table with equality deletes.
        raise rewritten(
            sink,
            "the table has delete files, and pyiceberg cannot tell which data files they apply to "
            f"({type(error).__name__})",
            first="compact the table, delete",
        ) from None
    touched = [task for task in tasks if task.file.file_path in paths and task.delete_files]
    if touched:
        raise rewritten(
            sink, f"rows of {len(touched)} data files that the run wrote were deleted since (merge on read)"
        )
