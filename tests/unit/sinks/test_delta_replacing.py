"""What a reprocessing replaces in a Delta Lake table: the files that the run added, or nothing."""

from __future__ import annotations

import json
import os

import deltalake
import pyarrow as pa
import pytest

from airflow_eos.exceptions import TableRewritten, UnknownTable
from tests.support.lakes import DeltaLake
from tests.unit.sinks.test_publishing import append, names
from tests.unit.sinks.test_replacing import NEW, OLD, again, drop_rows, published


def names_of_scan(lake):
    rows = lake.scan()["name"].to_pylist()
    return {name: rows.count(name) for name in rows}


def test_rows_are_found_when_the_log_was_cleaned_up(delta):
    """No log entry tells any more which version added the files."""
    earlier = published(delta)
    append(delta)
    for entry in (delta.folder / "_delta_log").glob("*.json"):
        os.utime(entry, (0, 0))
    delta.table.create_checkpoint()
    delta.table.cleanup_metadata()
    again(delta, earlier).publish()
    assert names_of_scan(delta) == {"foreign": 1, NEW: 2}


def test_rows_are_found_when_a_checkpoint_has_no_counts(tmp_path):
    """As the table's properties require: then the counts are read from the files."""
    counts = ("delta.checkpoint.writeStatsAsJson", "delta.checkpoint.writeStatsAsStruct")
    lake = DeltaLake(tmp_path, configuration=dict.fromkeys(counts, "false"))
    earlier = published(lake)
    append(lake)
    lake.table.create_checkpoint()
    again(lake, earlier).publish()
    assert names_of_scan(lake) == {"foreign": 1, NEW: 2}


def test_files_of_a_restored_version_are_as_they_were_added(delta):
    """They are live again under the same names."""
    earlier = published(delta)
    version = delta.table.version()
    drop_rows(delta)
    delta.table.restore(version)
    again(delta, earlier).publish()
    assert names_of_scan(delta) == {NEW: 2}


def test_a_file_with_a_deletion_vector_is_not_as_it_was_added(delta, monkeypatch):
    """The file exists, but some of its rows are deleted."""
    earlier = published(delta)
    (file,) = delta.added()
    uri = f"file://{delta.folder}/{file['path']}"
    monkeypatch.setattr("airflow_eos.sinks.delta_rows._reader_features", lambda _: ["deletionVectors"])
    vectors = pa.table({"filepath": [uri], "selection_vector": [[False, True]]})
    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", lambda _: vectors)
    with pytest.raises(TableRewritten, match=r"1 \(0 rows\) are in the table as they were"):
        again(delta, earlier).publish()


def test_an_append_only_table_is_refused(delta):
    """Before any input is read, by name."""
    earlier = published(delta)
    attempt = again(delta, earlier)
    delta.table.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnknownTable, match="appendOnly"):
        attempt.sink.refuse_rewritten(attempt.sink.load(), [earlier])
    with pytest.raises(UnknownTable, match="appendOnly"):
        attempt.publish()
    assert names(delta) == {OLD: 2}


def test_what_is_removed_names_size_and_partition(tmp_path):
    """Readers of the change data feed need them; values are as the log had them when the file was added."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
    partitioned = DeltaLake(tmp_path, schema, partition_by=["day", "name"])
    earlier = published(partitioned)
    added = {file["path"]: file for file in partitioned.added()}
    again(partitioned, earlier).publish()
    newest = max((partitioned.folder / "_delta_log").glob("*.json")).read_text()
    removed = [json.loads(line)["remove"] for line in newest.splitlines() if "remove" in line]
    assert {file["path"] for file in removed} == set(added)
    for file in removed:
        assert file["partitionValues"] == added[file["path"]]["partitionValues"]
        assert file["size"] == added[file["path"]]["size"]
        assert file["dataChange"]
