"""The doctor's checks of a table, and the comparison of its rows with the ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.table import TableLayout
from airflow_eos.operations.intent_dismissal import refuse_present
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.operations.verification import table_finding
from airflow_eos.sinks.iceberg import IcebergSink
from tests.support.run_records import run_record
from tests.unit.sinks.test_publishing import Attempt, append

RUN = "run/p/1"


def checks_of(properties, name="db.t", **digests):
    """Return the doctor's checks of a table by their subjects; none has a property's value."""
    table = IcebergTable(name, catalog="c", properties=properties)
    checks = list(table_checks(table, lambda: digests))
    shown = " ".join(f"{check.found} {check.advice}" for check in checks)
    assert not [value for value in properties.values() if len(value) > 4 and value in shown]
    return {check.name.removeprefix(f"table {table}").strip(): check for check in checks}


def test_a_table_that_runs_can_write_has_no_finding(iceberg, warehouse):
    """The doctor commits nothing, and leaves no file in the storage."""
    Attempt(iceberg).publish()
    before = iceberg.table.metadata_location
    checks = checks_of(warehouse)
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["fencing tokens"].found == "readable; 1 consumer group, 1 run"
    assert iceberg.table.metadata_location == before
    assert not list(Path(warehouse["warehouse"].removeprefix("file://")).rglob("*doctor*"))


@pytest.mark.parametrize("look", ["doctor", "verify", "dismiss", "run"])
def test_no_look_at_a_table_leaves_a_connection_to_its_catalog(iceberg, warehouse, catalogs, look):
    """Otherwise the process of a page, a trigger or a worker would keep a connection per catalog."""
    receipt = Attempt(iceberg).publish()
    table = IcebergTable("db.t", catalog="c", properties=warehouse)
    details = {"sink": str(table), "uuid": str(iceberg.table.metadata.table_uuid), **receipt.to_dict()}
    record = run_record(details={"table": details})
    earlier = len(catalogs)
    if look == "doctor":
        assert checks_of(warehouse)
    elif look == "verify":
        assert table_finding(record, lambda _: table, lambda: None).outcome == "ok"
    elif look == "dismiss":
        intent = Intent(str(table), TableLayout("of the table before", 0, 0), 1, record, "g", ())
        refuse_present(intent, "eos.cursor.g", table, "ledger")
    else:
        with IcebergSink(table, "eos.p") as sink:
            sink.load()
    (opened,) = catalogs[earlier:]
    assert opened.engine.pool.checkedin() == 0


def test_a_table_that_is_not_there_is_named(warehouse):
    """Nothing else is checked in that case."""
    (check,) = checks_of(warehouse, "db.u").values()
    assert check.status == "fail"
    assert "create the table 'db.u'" in check.found


@pytest.mark.parametrize(
    ("properties", "failed"),
    [
        ({"eos.0123456789": '{"v": 99}'}, "fencing tokens"),
        ({"write.data.path": "file:///proc/none"}, "files"),
        ({"write.format.default": "orc"}, ""),
        ({"write.parquet.compression-codec": "lzo"}, ""),
    ],
)
def test_what_keeps_runs_from_writing_is_found(iceberg, warehouse, properties, failed):
    """A property that a newer version wrote, a storage that refuses files, files of another format."""
    with iceberg.table.transaction() as transaction:
        transaction.set_properties(properties)
    checks = checks_of(warehouse)
    assert [name for name, check in checks.items() if check.status == "fail"] == [failed]


def test_a_storage_that_keeps_files_is_no_obstacle(lake, monkeypatch):
    """Like a bucket whose policy forbids deletes: runs only add files."""

    def refused(*_):
        raise PermissionError("no s3:DeleteObject")

    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler.delete_file", refused)
    monkeypatch.setattr("pyiceberg.io.pyarrow.PyArrowFileIO.delete", refused)
    checks = {check.name: check for check in table_checks(lake.sink(), dict)}
    check = checks[f"table {lake.sink()} files"]
    assert (check.status, "did not delete it again: PermissionError: no s3" in check.found) == ("warn", True)
    Attempt(lake).publish()


def test_a_catalog_that_refuses_commits_is_found(warehouse, monkeypatch):
    """Its answer is shown without the address that it names."""

    def refused(*_):
        raise PermissionError(f"no grant at {warehouse['uri']}")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", refused)
    check = checks_of(warehouse)["commits"]
    assert (check.status, check.found) == ("fail", "the catalog refused: PermissionError: no grant at <uri>")


def test_files_that_no_snapshot_names_are_listed_with_their_attempt(iceberg, warehouse):
    """Of a run that the ledger has, or of one that never committed; files of snapshots are not listed."""
    Attempt(iceberg).publish()
    append(iceberg)
    sink = IcebergSink(IcebergTable("db.t", catalog="c", properties=warehouse), "eos.p")
    version = sink.load()
    for run in (RUN, RUN, "run/p/2"):
        writer = sink.writer(version, keys.pruned_digest(run))
        writer.write(writer.columns(pa.table({"id": [1]})))
    check = checks_of(warehouse, **{keys.pruned_digest(RUN): RUN})["unnamed files"]
    assert check.status == "warn"
    assert "2 files" in check.found
    assert f"of {RUN}: 00000-0-" in check.found
    assert f"of a run that the ledger does not hold (digest {keys.pruned_digest('run/p/2')})" in check.found
    assert "remove_orphan_files" in check.advice


# -- the rows of a run ------------------------------------------------------------------------------------


def finding_of(iceberg, receipt, **changes):
    table = iceberg.table
    details = {"sink": "iceberg:c/db.t", "uuid": str(table.metadata.table_uuid), **receipt.to_dict()}
    record = run_record(details={"table": {**details, **changes}})
    finding = table_finding(record, lambda named: replace(named, properties=iceberg.properties), lambda: None)
    assert not [value for value in iceberg.properties.values() if len(value) > 4 and value in finding.detail]
    return finding


def test_rows_of_a_run_are_counted_in_the_files_of_its_snapshot(iceberg):
    """Whatever other writers have done since, and also if the table can no longer be written."""
    receipt = Attempt(iceberg).publish()
    append(iceberg)
    iceberg.table.delete("name == 'run/p/1'")
    with iceberg.table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    assert (finding_of(iceberg, receipt).outcome, finding_of(iceberg, receipt).found) == ("ok", 2)


def test_an_expired_snapshot_is_no_mismatch(iceberg):
    """Its rows may be in the table, but nothing says which they are."""
    receipt = Attempt(iceberg).publish()
    append(iceberg)
    iceberg.table.maintenance.expire_snapshots().by_ids([receipt.snapshot]).commit()
    finding = finding_of(iceberg, receipt)
    assert finding.outcome == "expired"
    assert "was expired" in finding.detail


def test_what_is_not_there_as_it_was_written_is_a_mismatch(iceberg):
    """Another count, a missing file, a recreated table."""
    receipt = Attempt(iceberg).publish()
    assert finding_of(iceberg, receipt, rows=3).detail == "its data files hold 2 rows"
    assert finding_of(iceberg, receipt, files=2).outcome == "mismatch"
    assert "recreated" in finding_of(iceberg, receipt, uuid="other").detail
    (path,) = [file["file_path"] for file in iceberg.table.inspect.files().to_pylist()]
    Path(path.removeprefix("file://")).unlink()
    finding = finding_of(iceberg, receipt)
    assert finding.outcome == "mismatch"
    assert finding.detail.startswith(f"1 data file missing, as 00000-0-{keys.pruned_digest(RUN)}-")


def test_a_run_behind_which_the_table_was_set_back_is_a_mismatch(iceberg):
    """Also after an expiry and other commits; runs older than the remaining snapshots do not count."""
    receipts = [Attempt(iceberg, f"run/p/{number}", 10 + number).publish() for number in range(4)]
    iceberg.table.manage_snapshots().create_tag(receipts[0].snapshot, "kept").commit()
    iceberg.table.manage_snapshots().set_current_snapshot(receipts[2].snapshot).commit()

    def outcomes():
        return [finding_of(iceberg, receipt).outcome for receipt in receipts]

    assert outcomes() == ["ok", "ok", "ok", "mismatch"]
    iceberg.table.maintenance.expire_snapshots().by_ids([receipts[1].snapshot]).commit()
    append(iceberg)
    assert outcomes() == ["ok", "expired", "ok", "mismatch"]
    assert "was set back behind the snapshot" in finding_of(iceberg, receipts[3]).detail
    iceberg.table.manage_snapshots().set_current_snapshot(receipts[3].snapshot).commit()
    assert outcomes() == ["ok", "expired", "ok", "ok"]


@pytest.mark.parametrize(("forwarded", "outcome"), [(True, "ok"), (False, "mismatch")])
def test_a_run_whose_branch_was_removed_is_undone_unless_main_has_its_rows(iceberg, forwarded, outcome):
    """Audited rows are published by a fast-forward of main: written again, they would be there twice."""
    append(iceberg)
    iceberg.table.manage_snapshots().create_branch(
        iceberg.table.current_snapshot().snapshot_id, "audit"
    ).commit()
    receipt = Attempt(iceberg, branch="audit").publish()
    if forwarded:
        iceberg.table.manage_snapshots().set_current_snapshot(receipt.snapshot).commit()
    iceberg.table.manage_snapshots().remove_branch("audit").commit()
    assert finding_of(iceberg, receipt, sink="iceberg:c/db.t@audit").outcome == outcome


def test_a_run_that_was_picked_into_main_and_compacted_is_not_undone(iceberg):
    """The snapshot in main is another one, which names the run's; the branch began anew."""
    append(iceberg)
    iceberg.table.manage_snapshots().create_branch(
        iceberg.table.current_snapshot().snapshot_id, "audit"
    ).commit()
    receipt = Attempt(iceberg, branch="audit").publish()
    append(iceberg)
    table = iceberg.table
    (added, *_) = table.snapshot_by_id(receipt.snapshot).manifests(table.io)
    with table.transaction() as transaction:  # as Java's cherrypick_snapshot
        source = {"source-snapshot-id": str(receipt.snapshot)}
        with transaction.update_snapshot(snapshot_properties=source).fast_append() as picked:
            picked.append_data_file(added.fetch_manifest_entry(table.io)[0].data_file)
    iceberg.compact()
    table = iceberg.table
    table.manage_snapshots().remove_branch("audit").commit()
    iceberg.table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    assert finding_of(iceberg, receipt, sink="iceberg:c/db.t@audit").outcome == "ok"


def expired_by_java(iceberg, *ids):
    """Remove snapshots as Iceberg's Java library does: their successors keep the parents' ids."""
    path = Path(iceberg.table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    for history in ("snapshots", "snapshot-log"):
        metadata[history] = [entry for entry in metadata[history] if entry["snapshot-id"] not in ids]
    path.write_text(json.dumps(metadata))


def test_a_run_stays_undone_when_the_snapshot_before_it_expires(iceberg):
    """It is older than the run's, which no branch names and whose age keeps it for a while."""
    first, second, undone = (
        Attempt(iceberg, f"run/p/{number}", 10 + number).publish() for number in range(3)
    )
    iceberg.table.manage_snapshots().rollback_to_snapshot(first.snapshot).commit()
    append(iceberg)
    for expired in (first, second):
        expired_by_java(iceberg, expired.snapshot)
        assert finding_of(iceberg, undone).outcome == "mismatch"


@pytest.mark.parametrize("by", ["java", "pyiceberg"])
def test_a_tagged_run_that_was_compacted_is_not_undone(iceberg, by):
    """Whoever expires the snapshots in between: otherwise its rows would be written again."""
    tagged, *between = (Attempt(iceberg, f"run/p/{number}", 10 + number).publish() for number in range(2))
    iceberg.table.manage_snapshots().create_tag(tagged.snapshot, "kept").commit()
    iceberg.compact()
    *_, deleting, _ = iceberg.table.snapshots()
    ids = [between[0].snapshot, deleting.snapshot_id]
    if by == "java":
        expired_by_java(iceberg, *ids)
    else:
        iceberg.table.maintenance.expire_snapshots().by_ids(ids).commit()
    assert finding_of(iceberg, tagged).outcome == "ok"


def test_a_table_that_cannot_be_read_is_not_compared(iceberg):
    """The result says nothing about the rows."""
    receipt = Attempt(iceberg).publish()
    finding = finding_of(iceberg, receipt, sink="iceberg:c/db.gone")
    assert finding.outcome == "table"
    assert finding.detail.startswith("not compared: iceberg:c/db.gone does not exist")


@pytest.mark.parametrize("branch", [None, "audit"])
def test_a_record_names_a_table_that_can_be_opened(branch):
    """By the name in records and INTENTs."""
    table = IcebergTable("db.nested.t", catalog="lake", branch=branch)
    assert IcebergTable.named(str(table)) == table
    assert IcebergTable.named("postgres:lake/db.t") is None


def test_a_catalog_in_a_database_is_opened_by_its_own_name(warehouse):
    """Its tables belong to that name, which another tool may have chosen, whatever the connection's name."""
    sink = IcebergTable("db.t", catalog="iceberg_default", properties=warehouse)
    (check,) = table_checks(sink, dict)
    assert "under its name, which is 'iceberg_default' here: see 'catalog_name'" in check.found
    named = replace(sink, properties={**warehouse, "catalog_name": "c"})
    assert {check.status for check in table_checks(named, dict)} == {"ok"}
