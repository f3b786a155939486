"""The doctor's checks of other writers of a table, and of what maintenance may remove from it."""

from __future__ import annotations

import datetime as dt

import deltalake
import pyarrow as pa
import pytest

from airflow_eos.operations import delta_inspection, iceberg_inspection
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.operations.table_retention import interval, milliseconds
from tests.support.lakes import SCHEMA, DeltaLake, IcebergLake
from tests.unit.sinks.test_publishing import Attempt, append

ROWS = pa.table({"id": [1], "name": ["foreign"]}, schema=SCHEMA)


def check_of(lake, subject, **sink):
    """The doctor's check of a table with this subject."""
    table = lake.sink(**sink)
    checks = {check.name.removeprefix(f"table {table}").strip(): check for check in table_checks(table, dict)}
    return checks[subject]


def appended_by_spark(iceberg):
    """Append like Iceberg's Spark runtime, with its name."""
    names = {"engine-name": "spark", "engine-version": "4.0.1", "app-id": "app-7"}
    iceberg.table.append(ROWS, snapshot_properties=names)


def appended_by_a_stream(delta):
    """Append with an application id, like Spark's streaming sink."""
    properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction("stream-7", 1)])
    deltalake.write_deltalake(str(delta.folder), ROWS, mode="append", commit_properties=properties)


def deleted(lake):
    append(lake)
    lake.table.delete("name = 'foreign'")


def rolled_back(lake):
    """Return to the state before an append."""
    if isinstance(lake, IcebergLake):
        before = lake.table.current_snapshot().snapshot_id
        append(lake)
        lake.table.manage_snapshots().rollback_to_snapshot(before).commit()
    else:
        before = lake.table.version()
        append(lake)
        lake.table.restore(before)


WRITERS = f"delta-rs:py-{deltalake.__version__}"
FOREIGN = [
    ("iceberg", appended_by_spark, "ok", "1 x append by spark 4.0.1, application app-7"),
    ("iceberg", deleted, "warn", "1 x delete by a writer without a name"),
    ("iceberg", rolled_back, "warn", "1 x rollback by a writer without a name"),
    ("delta", appended_by_a_stream, "ok", f"1 x WRITE by {WRITERS}, application stream-7"),
    ("delta", deleted, "warn", f"1 x DELETE by {WRITERS}"),
    ("delta", rolled_back, "warn", f"1 x RESTORE by {WRITERS}"),
]


@pytest.mark.parametrize(("kind", "change", "status", "finding"), FOREIGN)
def test_a_commit_that_no_run_made_is_named_with_its_writer(request, kind, change, status, finding):
    """A warning if rows were rewritten or removed; an append only costs a run another load."""
    lake = request.getfixturevalue(kind)
    Attempt(lake).publish()
    change(lake)
    check = check_of(lake, "other writers")
    assert (check.status, finding in check.found) == (status, True), check.found
    assert ("TableRewritten" in check.advice) == (status == "warn")


def test_commits_of_runs_are_not_named(iceberg, delta):
    """Neither their appends nor their bars; the first commit of a Delta Lake table creates it."""
    for lake in (iceberg, delta):
        Attempt(lake).publish()
        zombie = Attempt(lake, "run/p/2", 20)
        assert zombie.publisher.settle(zombie.claim) is None
    assert check_of(iceberg, "other writers").found == "none in the last 2 commits"
    commits = check_of(delta, "other writers").found
    assert commits.startswith("in the last 3 commits, beside runs: 1 x CREATE TABLE by")
    assert ";" not in commits


def test_commits_of_one_kind_are_counted_and_only_the_last_are_read(lake, monkeypatch):
    """The newest first: old ones are not read."""
    for module in (iceberg_inspection, delta_inspection):
        monkeypatch.setattr(module, "RECENT", 3)
    deleted(lake)
    for _ in range(3):
        append(lake)
    check = check_of(lake, "other writers")
    assert check.status == "ok"
    assert check.found.startswith("in the last 3 commits, beside runs: 3 x ")


def test_commits_to_another_branch_are_not_of_the_runs(iceberg):
    """Runs on a branch depend on that branch only."""
    append(iceberg)
    table = iceberg.table
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    deleted(iceberg)
    assert check_of(iceberg, "other writers").status == "warn"
    assert check_of(iceberg, "other writers", branch="audit").found.startswith("in the last 1 commit, beside")


def test_snapshots_that_are_expired_are_not_looked_at(iceberg):
    """Their successors name them as parents."""
    deleted(iceberg)
    deleting = iceberg.table.current_snapshot().snapshot_id
    append(iceberg)
    iceberg.table.maintenance.expire_snapshots().by_ids([deleting]).commit()
    assert check_of(iceberg, "other writers").found.startswith(
        "in the last 1 commit, beside runs: 1 x append"
    )


# -- what maintenance may remove --------------------------------------------------------------------------


def with_properties(lake, properties):
    if isinstance(lake, DeltaLake):
        lake.table.alter.set_table_properties(properties)
        return
    with lake.table.transaction() as transaction:
        transaction.set_properties(properties)


RETENTIONS = [
    ("iceberg", "history", {}, "ok", "kept for 5 days"),
    ("iceberg", "history", {"history.expire.max-snapshot-age-ms": "3600000"}, "warn", "kept for 1 hour"),
    ("iceberg", "history", {"history.expire.max-snapshot-age-ms": "soon"}, "unknown", "soon"),
    ("iceberg", "history", {"history.expire.max-snapshot-age-ms": str(2**63 - 1)}, "ok", "999,999,999 days"),
    ("iceberg", "metadata files", {}, "ok", "no commit deletes"),
    (
        "iceberg",
        "metadata files",
        {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"},
        "warn",
        "the last 1 (",
    ),
    (
        "iceberg",
        "metadata files",
        {"write.metadata.delete-after-commit.enabled": "true"},
        "ok",
        "the last 100 (",
    ),
    ("delta", "history", {}, "ok", "kept for 30 days"),
    ("delta", "history", {"delta.logRetentionDuration": "interval 2 hours"}, "warn", "kept for 2 hours"),
    ("delta", "unpublished files", {}, "ok", "kept for 7 days"),
    (
        "delta",
        "unpublished files",
        {"delta.deletedFileRetentionDuration": "interval 30 minutes"},
        "warn",
        "kept for 30 minutes",
    ),
]


@pytest.mark.parametrize(("kind", "subject", "properties", "status", "finding"), RETENTIONS)
def test_what_is_removed_before_retries_have_ended_is_named(
    request, kind, subject, properties, status, finding
):
    """The error has the property, and what runs lose."""
    lake = request.getfixturevalue(kind)
    if properties:
        with_properties(lake, properties)
    check = check_of(lake, subject)
    assert (check.status, finding in check.found) == (status, True), check.found
    assert bool(check.advice) == (status == "warn")


def test_a_branch_has_an_age_of_its_own(iceberg):
    """It overrides the table's property."""
    append(iceberg)
    table = iceberg.table
    head = table.current_snapshot().snapshot_id
    ages = {"max_snapshot_age_ms": 60_000, "max_ref_age_ms": 3_600_000}
    table.manage_snapshots().create_branch(head, "audit", **ages).commit()
    check = check_of(iceberg, "history", branch="audit")
    assert (check.status, "kept for 1 minute (max-snapshot-age-ms of branch 'audit'" in check.found) == (
        "warn",
        True,
    )
    assert check_of(iceberg, "history").status == "ok"
    check = check_of(iceberg, "branch", branch="audit")
    assert (check.status, "are kept for 1 hour (its max-ref-age-ms=3600000)" in check.found) == ("warn", True)


def test_a_branch_without_an_age_has_that_of_the_table(iceberg):
    """Expiry applies to it nevertheless; its own age overrides the table's, also an unlimited one."""
    append(iceberg)
    with_properties(iceberg, {"history.expire.max-ref-age-ms": "60000"})
    for name, age in {"audit": None, "kept": 2**63 - 1}.items():
        table = iceberg.table
        head = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(head, name, max_ref_age_ms=age).commit()
    check = check_of(iceberg, "branch", branch="audit")
    assert (check.status, "1 minute (history.expire.max-ref-age-ms=60000)" in check.found) == ("warn", True)
    assert check_of(iceberg, "branch", branch="kept").status == "ok"


def test_a_vacuum_that_kept_less_than_the_table_says_is_named(delta):
    """It would delete files that an active run has written: the log has its parameters."""
    append(delta)
    append(delta)
    delta.compact()
    delta.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    check = check_of(delta, "unpublished files")
    assert (check.status, "kept for 0 seconds (the last VACUUM: 0 ms)" in check.found) == ("warn", True)
    assert "rows would be missing" in check.advice


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("interval 1 week", dt.timedelta(weeks=1)),
        ("INTERVAL 1 day 12 hours", dt.timedelta(hours=36)),
        ("interval 1500 milliseconds", dt.timedelta(seconds=1.5)),
        ("2 minutes", dt.timedelta(minutes=2)),
        ("interval 9223372036854775807 days", dt.timedelta(days=999_999_999, seconds=86_399)),
        ("interval 1 month", None),
        ("interval 1 day 1 month", None),
        ("", None),
    ],
)
def test_a_span_is_read_as_the_format_has_it(text, span):
    """An unknown unit is not guessed."""
    assert interval(text) == span
    assert milliseconds(text) is None


def test_what_the_storage_refuses_to_show_is_unknown(lake, monkeypatch):
    """The checks before it are made, and the error shows no property."""

    def refused(*_):
        raise PermissionError("403")

    kind = "Iceberg" if isinstance(lake, IcebergLake) else "Delta"
    module = iceberg_inspection if kind == "Iceberg" else delta_inspection
    monkeypatch.setattr(getattr(module, f"{kind}Inspection"), "_unnamed", refused)
    assert check_of(lake, "").status == "ok"
    check = check_of(lake, "look")
    assert (check.status, check.found) == ("unknown", "PermissionError: 403")
