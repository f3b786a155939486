"""A reprocessing replaces exactly what the earlier run wrote, or is refused before any change."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.typedef import Record

from airflow_eos.exceptions import RunFenced, TableRewritten
from airflow_eos.model.table import EarlierRows
from airflow_eos.run import publishing
from airflow_eos.run.replacing import earlier_rows, file_label
from tests.support.run_records import run_record
from tests.unit.sinks.test_publishing import Attempt, append, names

OLD, NEW = "run/p/1", "run/p/1#1"


def published(lake, key=OLD, **options):
    """Publish a run; return what a reprocessing knows of its rows."""
    return EarlierRows(Attempt(lake, key, **options).publish(), file_label(key))


def again(lake, *earlier, key=NEW, token=20, **options):
    """An attempt at a reprocessing that replaces the rows of earlier commits."""
    attempt = Attempt(lake, key, token, scope="again", lasting=False, **options)
    attempt.claim = replace(attempt.claim, replaces=earlier)
    return attempt


def test_the_rows_of_the_earlier_run_are_replaced_in_one_commit(lake):
    """Rows of other writers stay, also with the same keys; readers see the old rows or the new ones."""
    append(lake)
    earlier = published(lake)
    append(lake)
    before = lake.commits()

    again(lake, earlier).publish()

    assert names(lake) == {"foreign": 2, NEW: 2}
    assert lake.commits() == before + 1


def test_a_replacement_is_made_once_whatever_comes_between(lake):
    """Another attempt, a foreign writer, a lost answer: the files to remove are looked up again."""
    earlier = published(lake)
    first, second = again(lake, earlier), again(lake, earlier)
    first.before_commit = second.publish
    second.before_commit = lambda: append(lake)

    def lost():
        raise ConnectionError("reset")

    second.after_commit = lost

    first.publish()

    assert names(lake) == {"foreign": 1, NEW: 2}


def test_a_reprocessing_without_rows_takes_the_earlier_ones_out(lake):
    """The corrected function returns no rows."""
    earlier = published(lake)
    append(lake)
    attempt = again(lake, earlier)
    receipt = attempt.publisher.publish(attempt.claim, ())
    assert (receipt.files, receipt.rows) == (0, 0)
    assert names(lake) == {"foreign": 1}


def test_rows_are_found_when_their_snapshot_is_expired(iceberg):
    """The manifests name it; they may have been rewritten, too."""
    earlier = published(iceberg)
    append(iceberg)
    iceberg.table.maintenance.expire_snapshots().by_ids([earlier.snapshot]).commit()
    again(iceberg, earlier).publish()
    assert names(iceberg) == {"foreign": 1, NEW: 2}


def test_files_of_another_partition_spec_are_replaced(iceberg):
    """The new rows are in the partitions of the table's present spec."""
    earlier = published(iceberg)
    with iceberg.table.update_spec() as update:
        update.add_identity("name")
    append(iceberg)
    second = EarlierRows(again(iceberg, earlier).publish(), file_label(NEW))
    assert names(iceberg) == {"foreign": 1, NEW: 2}
    again(iceberg, second, key="run/p/1#2", token=30).publish()
    assert names(iceberg) == {"foreign": 1, "run/p/1#2": 2}


def test_a_branch_is_replaced_on_its_own(iceberg):
    """Main keeps the earlier rows."""
    append(iceberg)
    table = iceberg.table
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    earlier = published(iceberg, branch="audit")
    again(iceberg, earlier, branch="audit").publish()
    assert names(iceberg, branch="audit") == {"foreign": 1, NEW: 2}
    assert names(iceberg) == {"foreign": 1}


# -- refused ----------------------------------------------------------------------------------------------


def delete_a_row(lake):
    """Copy on write: the file is rewritten without the row."""
    lake.table.delete("id = 100")


def update_a_row(delta):
    """Like a delete."""
    delta.table.update(new_values={"name": "other"}, predicate="id = 100")


def compact(lake):
    """Write all rows into one new file, like a compaction."""
    append(lake)
    lake.compact()


def drop_rows(lake):
    """Delete whole files."""
    lake.table.delete(f"name = '{OLD}'")


class DeleteManifest(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


def delete_on_read(iceberg):
    """Delete by position, like Spark's merge-on-read: the data file stays."""
    table = iceberg.table
    (target, *_) = [file["file_path"] for file in table.inspect.files().to_pylist()]
    path = f"{table.location()}/data/deletes.parquet"
    ids = [(b"PARQUET:field_id", b"2147483546"), (b"PARQUET:field_id", b"2147483545")]
    columns = [
        pa.field("file_path", pa.string(), nullable=False, metadata=dict(ids[:1])),
        pa.field("pos", pa.int64(), nullable=False, metadata=dict(ids[1:])),
    ]
    pq.write_table(
        pa.table({"file_path": [target], "pos": [0]}, schema=pa.schema(columns)), path.removeprefix("file://")
    )
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=table.io.new_input(path).__len__(),
        lower_bounds={2147483546: target.encode()},
        upper_bounds={2147483546: target.encode()},
    )
    deletes.spec_id = table.metadata.default_spec_id
    transaction = table.transaction()
    update = transaction.update_snapshot().fast_append()

    def with_deletes():
        output = update.new_manifest_output()
        with DeleteManifest(
            table.spec(), table.schema(), output, update._snapshot_id, update._compression
        ) as writer:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=update._snapshot_id, data_file=deletes
                )
            )
        return [writer.to_manifest_file(), *update._existing_manifests()]

    update._manifests = with_deletes
    update.commit()
    transaction.commit_transaction()


CHANGES = {
    delete_a_row: ("iceberg delta", {OLD: 1}),
    update_a_row: ("delta", {OLD: 1, "other": 1}),
    compact: ("iceberg delta", {OLD: 2, "foreign": 1}),
    drop_rows: ("iceberg delta", {}),
    delete_on_read: ("iceberg", {OLD: 1}),
}


@pytest.mark.parametrize("between", [False, True], ids=["before", "between look and commit"])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(kind, change, id=f"{kind} {change.__name__}")
        for change, (kinds, _) in CHANGES.items()
        for kind in kinds.split()
    ],
)
def test_what_was_rewritten_is_not_replaced(request, kind, change, between):
    """Nothing is changed: the table keeps its rows."""
    lake = request.getfixturevalue(kind)
    earlier = published(lake)
    attempt = again(lake, earlier)
    if between:
        attempt.before_commit = lambda: change(lake)
    else:
        change(lake)
        with pytest.raises(TableRewritten):
            attempt.sink.refuse_rewritten(attempt.sink.load(), [earlier])
    with pytest.raises(TableRewritten, match="Nothing was replaced"):
        attempt.publish()
    assert names(lake) == CHANGES[change][1]


def test_files_partitioned_by_a_column_that_was_dropped_are_refused_before_anything_is_read(iceberg):
    """No try could commit; files of other specs are replaced together with them."""
    with iceberg.table.update_spec() as update:
        update.add_identity("name")
    divided = published(iceberg)
    with iceberg.table.update_spec() as update:
        update.remove_field("name")
    whole = published(iceberg, "run/p/2", token=11, scope="other")
    with iceberg.table.update_schema() as update:
        update.delete_column("name")
    attempt = again(iceberg, divided, rows={"id": [1]})
    with pytest.raises(TableRewritten, match="partitioned by 'name', which is made of a column that was"):
        attempt.sink.refuse_rewritten(attempt.version, [divided])
    again(iceberg, whole, key="run/p/2#1", rows={"id": [2]}).publish()
    assert iceberg.values("id") == [2, 100, 101]


def test_without_the_comparison_rows_that_were_rewritten_are_there_twice(lake, monkeypatch):
    """The counter-test: the earlier rows stay, and all rows are appended."""
    earlier = published(lake)
    compact(lake)
    monkeypatch.setattr(f"airflow_eos.sinks.{lake.sink().KIND}.files_as_added", lambda *_: [])
    again(lake, earlier).publish()
    assert names(lake) == {OLD: 2, "foreign": 1, NEW: 2}


def test_rows_of_a_run_with_the_same_key_in_another_ledger_stay(lake):
    """Whether or not the table still has the rows of the run itself."""
    earlier = published(lake)
    published(lake, name="eos.abcdef0000", rows={"id": [1, 2], "name": ["other", "other"]})
    again(lake, earlier).publish()
    assert names(lake) == {NEW: 2, "other": 2}
    with pytest.raises(TableRewritten):
        again(lake, earlier, key="run/p/1#2", token=30).publish()
    assert names(lake) == {NEW: 2, "other": 2}


# -- zombies ----------------------------------------------------------------------------------------------


def test_a_barred_replacement_takes_nothing_out(lake):
    """The bar is an empty append; the barred zombie neither appends nor removes."""
    earlier = published(lake)
    zombie, successor = again(lake, earlier), again(lake, earlier)
    zombie.before_commit = lambda: successor.publisher.settle(successor.claim)
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(lake) == {OLD: 2}


def test_of_two_reprocessings_the_later_one_stays(lake):
    """The zombie of the first wakes up after the second has replaced the earlier run's rows."""
    earlier = published(lake)
    zombie = again(lake, earlier)
    following = again(lake, earlier, key="run/p/1#1", token=40)

    def come_first():
        assert following.publisher.settle(zombie.claim) is None
        following.publish()

    zombie.before_commit = come_first
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(lake) == {NEW: 2}


def test_without_the_rule_of_bars_a_barred_replacement_removes_rows(lake, monkeypatch):
    """Counter-test: the reprocessing is never committed, and the rows are gone."""
    earlier = published(lake)
    attempt = again(lake, earlier)
    monkeypatch.setattr(publishing, "rows_taken_out", lambda claim, _: claim.replaces)
    assert attempt.publisher.settle(attempt.claim) is None
    assert names(lake) == {}


# -- which rows -------------------------------------------------------------------------------------------


def of_table(snapshot, rows=1, sink="iceberg:c/db.t", uuid="u", **more):
    details = {"sink": sink, "uuid": uuid, "snapshot": snapshot, "files": int(rows > 0), "rows": rows}
    return run_record(details={"table": {**details, **more}})


def test_all_rounds_and_reprocessings_are_replaced_that_are_not_yet():
    """Two rounds, a reprocessing that appended, one that replaced the three, one without rows."""
    records = [of_table(1), of_table(2), of_table(3), of_table(4, replaced=[1, 2, 3]), of_table(5, rows=0)]
    rows = [
        [row.snapshot for row in earlier_rows(records[:n], "iceberg:c/db.t", None, "u")] for n in (1, 3, 4, 5)
    ]
    assert rows == [[1], [1, 2, 3], [4], [4]]


def test_rows_in_other_sinks_stay_and_a_table_made_again_is_refused():
    """A run without rows names no table."""
    records = [run_record(), of_table(1, sink="iceberg:c/db.other", uuid="other")]
    assert earlier_rows(records, "iceberg:c/db.t", None, "u") == ()
    with pytest.raises(TableRewritten, match="recreated"):
        earlier_rows([of_table(1, uuid="old")], "iceberg:c/db.t", None, "u")


@pytest.mark.parametrize(
    ("recorded", "sink", "branch", "is_same"),
    [
        ("iceberg:old/db.t", "iceberg:new/db.t", None, True),
        ("iceberg:c/db.t", "iceberg:c/db.t@main", "main", True),
        ("iceberg:c/db.t@b", "iceberg:c/db.t", None, False),
        ("iceberg:old/db.t@b", "iceberg:new/db.t@b", "b", True),
        ("delta:s3a://lake/t", "delta:s3://lake/t", None, True),
        ("postgres:old/public.t", "postgres:new/public.t", None, True),
    ],
)
def test_a_table_is_the_same_under_another_name_and_a_branch_is_another_one(recorded, sink, branch, is_same):
    """By its id, which branches share."""
    assert len(earlier_rows([of_table(1, sink=recorded)], sink, branch, "u")) == is_same
