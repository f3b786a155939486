"""Finds the data files that a run added to a Delta Lake table, provided that all of them are unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_eos.exceptions import UnknownTable
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.table import EarlierRows
from airflow_eos.sinks.delta_files import partition_texts, store_of
from airflow_eos.sinks.rewritten import refuse_other_files

_APPEND_ONLY = "delta.appendOnly"
_DELETION_VECTORS = "deletionVectors"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a version of a table.

    :param path: as in the log.
    :param size: bytes.
    :param rows: 0 with a deletion vector: the file is not as it was added. None if the log has no count.
    :param partition_values: as in the log.
    """

    path: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]


def files_as_added(
    table: deltalake.DeltaTable, replaces: Sequence[EarlierRows], owner: str, sink: DeltaTable
) -> list[LiveFile]:
    """Return the live data files that earlier commits of a run added.

    A data file never changes, and the names of a run's files begin with digests of its key and of its ledger,
    so that they are found even if the log no longer has its commit. ``OPTIMIZE``, and an update or delete of
    rows, replace the files or add a deletion vector to them.

    :raises TableRewritten: not all of the files are there, or rows of them are deleted.
    :raises UnknownTable: the table is append-only, so no file can be removed.
    """
    if not replaces:
        return []
    if table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true":
        raise UnknownTable(
            f"{sink} has {_APPEND_ONLY}=true, so that no rows can be replaced; unset the property, or use "
            "DeltaTable(reprocess='append')"
        )
    files = live_files(table)
    removed: list[LiveFile] = []
    for earlier in replaces:
        of_run = [file for file in files if file.path.startswith(f"{earlier.label}{owner}-")]
        refuse_other_files(
            sink, earlier.receipt, [_row_count(file, sink) for file in of_run], "version", "OPTIMIZE"
        )
        removed += of_run
    return removed


def live_files(table: deltalake.DeltaTable) -> list[LiveFile]:
    """Return the data files of the version that was loaded."""
    actions = pa.table(table.get_add_actions())
    touched: set[str] = set()
    if _DELETION_VECTORS in _reader_features(table):
        paths = pa.table(table.deletion_vectors())["filepath"].to_pylist()
        touched = {path.rpartition("/")[2] for path in paths}
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    values = {
        partition: partition_texts(pa.chunked_array(actions["partition"].combine_chunks().field(partition)))
        for partition in table.metadata().partition_columns
    }
    return [
        LiveFile(
            path,
            size,
            rows=0 if path.rpartition("/")[2] in touched else rows,
            partition_values={partition: column[number].as_py() for partition, column in values.items()},
        )
        for number, (path, size, rows) in enumerate(zip(*columns, strict=True))
    ]


def _row_count(file: LiveFile, sink: DeltaTable) -> int:
    if file.rows is not None:
        return file.rows
    with store_of(sink.uri, sink.properties).open_input_file(file.path) as stream:
        return int(pq.read_metadata(stream).num_rows)


def _reader_features(table: deltalake.DeltaTable) -> Sequence[str]:
    return table.protocol().reader_features or ()
