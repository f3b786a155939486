"""The doctor's checks of a Delta Lake table, and the comparison of its rows with the ledger."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.operations import delta_inspection
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.operations.verification import table_finding
from airflow_eos.run.replacing import file_label
from airflow_eos.sinks.delta import DeltaSink
from tests.support.run_records import run_record
from tests.unit.sinks.test_publishing import Attempt, append

RUN = "run/p/1"


def checks_of(delta, **digests):
    """Return the doctor's checks of a table by their subjects."""
    table = DeltaTable(str(delta.folder), connection=None)
    checks = list(table_checks(table, lambda: digests))
    return {check.name.removeprefix(f"table {table}").strip(): check for check in checks}


def test_a_table_that_runs_can_write_has_no_finding(delta):
    """The doctor commits nothing, and leaves no file in the folder."""
    Attempt(delta).publish()
    append(delta)
    before = sorted(path.name for path in delta.folder.rglob("*"))
    checks = checks_of(delta)
    assert {name: check.status for name, check in checks.items()} == dict.fromkeys(
        ("", "files", "other writers", "history", "unpublished files", "unnamed files"), "ok"
    )
    assert sorted(path.name for path in delta.folder.rglob("*")) == before


def test_a_table_that_is_not_there_or_cannot_be_written_is_named(delta):
    """Nothing else is checked in that case."""
    delta.table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    (check,) = checks_of(delta).values()
    assert (check.status, "forgets who wrote it" in check.found) == ("fail", True)
    delta.drop()
    (check,) = checks_of(delta).values()
    assert (check.status, "does not exist" in check.found) == ("fail", True)


def test_a_store_that_refuses_files_is_found(delta, monkeypatch):
    """Its answer is shown without the connection's options."""

    def refused(self):
        raise PermissionError("403 for t0psecret")

    monkeypatch.setattr(delta_inspection.DeltaInspection, "_store", refused)
    table = DeltaTable(str(delta.folder), connection=None, properties={"aws_token": "t0psecret"})
    check = next(check for check in table_checks(table, dict) if check.name.endswith("files"))
    assert (check.status, check.found) == (
        "fail",
        "the storage refused: PermissionError: 403 for <aws_token>",
    )


def test_files_that_no_version_names_are_listed_with_their_attempt(delta):
    """Files that a later version removed are not listed: VACUUM deletes them, and no attempt left them."""
    Attempt(delta).publish()
    append(delta)
    delta.table.optimize.compact()
    sink = DeltaSink(delta.sink(), "eos.0123456789")
    version = sink.load()
    for run in (RUN, RUN, "run/p/2"):
        writer = sink.writer(version, file_label(run))
        writer.write(writer.columns(pa.table({"id": [1]})))
    check = checks_of(delta, **{file_label(RUN): RUN})["unnamed files"]
    assert check.status == "warn"
    assert "2 files (" in check.found
    assert "1 file (" in check.found
    assert f"of {RUN}: {file_label(RUN)}-" in check.found
    assert f"of a run that the ledger does not hold (digest {file_label('run/p/2')})" in check.found
    assert "VACUUM" in check.advice


# -- the rows of a run ------------------------------------------------------------------------------------


def finding_of(delta, receipt, run=RUN, **changes):
    details = {
        "sink": f"delta:{delta.folder}",
        "uuid": str(delta.table.metadata().id),
        **receipt.to_dict(),
    }
    record = replace(run_record(details={"table": {**details, **changes}}), run_key=run)
    return table_finding(record, lambda table: table, lambda: None)


def test_rows_of_a_run_are_counted_in_the_files_of_its_version(delta):
    """Whatever other writers have done with the table since."""
    receipt = Attempt(delta).publish()
    append(delta)
    delta.table.delete("id = 100")
    delta.table.optimize.compact()
    finding = finding_of(delta, receipt)
    assert (finding.outcome, finding.found, finding.detail) == ("ok", 2, "")


def test_what_is_not_there_as_it_was_written_is_a_mismatch(delta):
    """Another count, another run's version, a missing file, a recreated table."""
    receipt = Attempt(delta).publish()
    assert finding_of(delta, receipt, rows=3).detail == "its data files hold 2 rows"
    assert finding_of(delta, receipt, files=2).detail == "the snapshot added 1 data file, not 2"
    assert finding_of(delta, receipt, run="run/p/9").detail == "the snapshot added 0 data files, not 1"
    assert "recreated" in finding_of(delta, receipt, uuid="other").detail
    (file,) = delta.added()
    (delta.folder / file["path"]).unlink()
    finding = finding_of(delta, receipt)
    assert (finding.outcome, finding.detail) == ("mismatch", f"1 data file missing, as {file['path']}")


def test_files_that_were_vacuumed_and_a_log_that_was_cleaned_up_are_no_mismatch(delta):
    """They can no longer be counted."""
    receipt = Attempt(delta).publish()
    append(delta)
    delta.table.optimize.compact()
    delta.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    finding = finding_of(delta, receipt)
    assert (finding.outcome, finding.found) == ("expired", 0)
    assert finding.detail == "1 data file taken out by later commits, and deleted"

    for entry in (delta.folder / "_delta_log").glob("*.json"):
        os.utime(entry, (0, 0))
    delta.table.create_checkpoint()
    delta.table.cleanup_metadata()
    finding = finding_of(delta, receipt)
    assert (finding.outcome, "was expired" in finding.detail) == ("expired", True)


@pytest.mark.parametrize("by", ["version", "moment"])
def test_a_table_that_was_restored_behind_a_run_is_a_mismatch(delta, by):
    """Until it is restored to a version with the run's rows; other commits do not matter."""
    before = delta.table.version()
    receipt = Attempt(delta).publish()
    moment = dt.datetime.fromtimestamp(delta.table.history(2)[-1]["timestamp"] / 1000, dt.timezone.utc)
    delta.table.restore(before if by == "version" else moment)
    append(delta)
    finding = finding_of(delta, receipt)
    assert (finding.outcome, finding.found) == ("mismatch", 2)
    assert finding.detail == "the table was set back behind the snapshot: reprocess the run, with 'append'"
    delta.table.restore(receipt.snapshot)
    append(delta)
    assert finding_of(delta, receipt).outcome == "ok"


@pytest.mark.parametrize("by", ["version", "moment"])
def test_a_table_that_was_restored_behind_a_run_whose_files_were_compacted_is_a_mismatch(delta, by):
    """No restore names the run's files; one to a later version has the rows in another file."""
    before = delta.table.version()
    receipt = Attempt(delta).publish()
    append(delta)
    delta.table.optimize.compact()
    compacted = delta.table.version()
    append(delta)

    def restore(version):
        entry = delta.folder / "_delta_log" / f"{version:020}.json"
        moment = dt.datetime.fromtimestamp(entry.stat().st_mtime_ns / 10**9, dt.timezone.utc)
        delta.table.restore(version if by == "version" else moment + dt.timedelta(milliseconds=1))

    for number in range(delta.table.version() + 1):  # further apart than the clock's precision
        os.utime(delta.folder / "_delta_log" / f"{number:020}.json", (number + 1, number + 1))
    restore(compacted)
    assert finding_of(delta, receipt).outcome == "ok"
    restore(receipt.snapshot)
    assert finding_of(delta, receipt).outcome == "ok"
    restore(compacted)
    assert finding_of(delta, receipt).outcome == "ok"
    restore(before)
    assert finding_of(delta, receipt).outcome == "mismatch"


@pytest.mark.parametrize("uri", ["s3://lake/raw/flights", "/data/flights", "file:///data/flights"])
def test_a_record_names_a_table_that_can_be_opened(uri):
    """By the name in records and INTENTs; a file system needs no connection."""
    table = DeltaTable(uri, connection="delta_default" if uri.startswith("s3") else None)
    assert DeltaTable.named(str(table)) == table
    assert DeltaTable.named("iceberg:c/db.t") is None
