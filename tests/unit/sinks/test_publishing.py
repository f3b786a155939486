"""Rows are in a table's history once: against real tables, with other writers' commits at every point.

Each test of a protection has its counter-test next to it, which removes the protection.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    OutcomeUnknown,
    RunFenced,
    StagedRowsLost,
    TableChanged,
    TableRefused,
    TableReplaced,
    UnknownTable,
)
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.operators import retriable
from airflow_eos.run import publishing
from airflow_eos.run.replacing import file_label
from airflow_eos.sinks.opening import open_table
from tests.support.publishing import PublishingAttempt

PROPERTY = "eos.0123456789"


class Attempt(PublishingAttempt):
    """An attempt with its own handle on the table, and its own files."""

    def __init__(
        self, lake, key="run/p/1", token=10, *, scope="cursor", lasting=True, rows=None, name=PROPERTY, **sink
    ):
        super().__init__(open_table(lake.sink(**sink), name), key, scope, token, lasting=lasting)
        rows = pa.table(rows or {"id": [token * 10, token * 10 + 1], "name": [key, key]})
        writer = self.sink.writer(self.version, file_label(key))
        self.files = writer.write(writer.columns(rows))


def names(lake, **options):
    """Return how often each run's name is in the table's rows, as another reader sees them."""
    rows = lake.values("name", **options)
    return {name: rows.count(name) for name in rows}


def append(lake, name="foreign"):
    """Append as a writer that knows nothing of our runs."""
    lake.append({"id": [1], "name": [name]})


def test_a_table_says_which_run_and_which_offsets_it_holds(iceberg):
    """The key is in the snapshot's summary, and in a property of the table."""
    attempt = Attempt(iceberg)
    receipt = attempt.publish()

    table = iceberg.table
    assert names(iceberg) == {"run/p/1": 2}
    assert (receipt.rows, receipt.files) == (2, 1)
    assert table.current_snapshot().snapshot_id == receipt.snapshot
    assert table.current_snapshot().summary["eos.run-key"] == "run/p/1"
    assert [name for name in table.properties if name.startswith("eos.")] == [PROPERTY]


def test_the_same_claim_is_published_once_whatever_comes_between(lake):
    """Two attempts at one INTENT, one between the other's load and commit: the second adopts."""
    first, second = Attempt(lake), Attempt(lake)
    published = []
    first.before_commit = lambda: published.append(second.publish())

    assert first.publish() == published[0]
    assert names(lake) == {"run/p/1": 2}


def test_without_the_compare_and_set_it_is_published_twice(lake, monkeypatch):
    """Counter-test: the commit accepts whatever base it finds, as the library does by default."""
    first, second = Attempt(lake), Attempt(lake)
    first.before_commit = second.publish
    real = first.commit

    def without(version, *arguments):
        return real(replace(version, table=first.sink.load().table), *arguments)

    first.sink.commit = first.watched(without)

    first.publish()

    assert names(lake) == {"run/p/1": 4}


def test_writers_that_know_nothing_of_us_cost_a_look(lake):
    """A foreign append between load and commit: the table is loaded again, the files stay."""
    attempt = Attempt(lake)
    attempt.before_commit = lambda: append(lake)

    attempt.publish()

    assert names(lake) == {"foreign": 1, "run/p/1": 2}
    assert attempt.commits == 2


def test_with_one_look_a_foreign_commit_fails_the_run(iceberg, monkeypatch):
    """Counter-test: nothing is loaded again."""
    monkeypatch.setattr(publishing, "MAX_LOOKS", 1)
    attempt = Attempt(iceberg)
    attempt.before_commit = lambda: append(iceberg)
    with pytest.raises(OutcomeUnknown):
        attempt.publish()
    assert names(iceberg) == {"foreign": 1}


@pytest.mark.parametrize("lost", ["all", "one"])
def test_data_files_that_are_gone_are_not_published(lake, tmp_path, lost):
    """Executors may not share the folder, or a clean-up removed orphans: no reader could open the table."""
    attempt = Attempt(lake)
    attempt.files = [*attempt.files, *Attempt(lake).files]
    files = sorted(tmp_path.rglob("*.parquet"))
    for path in files[: None if lost == "all" else 1]:
        path.unlink()

    with pytest.raises(
        StagedRowsLost, match=f"{2 if lost == 'all' else 1} of 2 data files .*{files[0].name}"
    ):
        attempt.publish()
    assert (attempt.commits, names(lake)) == (1, {})


@pytest.mark.parametrize("error", [ConnectionError("reset"), RuntimeError("proxy: 504")])
def test_a_lost_answer_is_looked_up(lake, error):
    """The catalog committed, but its answer was lost."""
    attempt = Attempt(lake)

    def lost():
        raise error

    attempt.after_commit = lost
    receipt = attempt.publish()

    assert names(lake) == {"run/p/1": 2}
    assert attempt.commits == 1
    assert receipt.rows == 2


def test_a_package_that_lacks_what_is_used_here_is_reported_at_once(lake):
    """The store was not asked, and another load would not help."""
    attempt = Attempt(lake)

    def lacks():
        raise ImportError("cannot import name 'RemoveAction'")

    attempt.before_commit = lacks
    with pytest.raises(ImportError, match="RemoveAction"):
        attempt.publish()
    assert attempt.commits == 1


def test_a_refusal_of_a_commit_that_was_done_keeps_its_files(lake):
    """A proxy sends a commit twice: the second is refused, the first is valid with all its manifests."""
    from airflow_eos.table_ports import TableMoved

    attempt = Attempt(lake)

    def refused():
        raise TableMoved("409")

    attempt.after_commit = refused
    attempt.publish()

    assert names(lake) == {"run/p/1": 2}


def test_the_librarys_own_commit_deletes_what_a_refusal_had_committed(iceberg):
    """Counter-test: the snapshot is committed, its manifests are deleted, and the table is unreadable."""
    table = iceberg.table
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    commit = table.catalog.commit_table

    def sent_twice(*arguments):
        commit(*arguments)
        raise CommitFailedException("409")

    table.catalog.commit_table = sent_twice
    with pytest.raises(CommitFailedException):
        table.append(pa.table({"id": [1], "name": ["lost"]}, schema=table.schema().as_arrow()))
    with pytest.raises(FileNotFoundError):
        names(iceberg)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (BadRequestError("ValidationException: too many table properties"), TableRefused),
        (ForbiddenError("NotAuthorizedException: not on this table"), AuthorizationFailed),
    ],
)
@pytest.mark.parametrize("act", ["publish", "settle"])
def test_a_commit_that_a_catalog_refuses_is_sent_once(iceberg, monkeypatch, refusal, kind, act):
    """A retry would be refused, too, and add new manifests; the same for a claim to be barred."""
    attempt = Attempt(iceberg)

    def refuse(*_):
        raise refusal

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(kind, match=str(refusal)):
        attempt.publish() if act == "publish" else attempt.publisher.settle(attempt.claim)
    assert attempt.commits == 1
    assert retriable.is_final(kind())


@pytest.mark.parametrize("status", [400, 403])
def test_a_gateway_that_refuses_a_commit_is_asked_again(iceberg, monkeypatch, status):
    """It answers instead of the catalog, in another form: the commit may not have reached the catalog."""
    attempt = Attempt(iceberg)
    commit, answers = SqlCatalog.commit_table, [BadRequestError if status == 400 else ForbiddenError]

    def answered(*arguments):
        if answers:
            raise answers.pop()(f"RESTError {status}: Could not decode json payload: <html>")
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", answered)
    attempt.publish()
    assert (attempt.commits, names(iceberg)) == (2, {"run/p/1": 2})


def test_a_claim_that_was_not_published_is_barred(lake):
    """T4, a zombie: it loaded the table before its successor barred it, and wakes up to commit."""
    zombie, successor = Attempt(lake), Attempt(lake)
    zombie.before_commit = lambda: successor.publisher.settle(successor.claim)

    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(lake) == {}


def test_of_a_zombie_and_the_next_run_over_its_range_one_is_there(lake):
    """The next run bars the open claim and publishes the same records, with a higher token."""
    zombie = Attempt(lake, "run/p/1", 10)
    following = Attempt(lake, "run/p/2", 20)

    def come_first():
        assert following.publisher.settle(zombie.claim) is None
        following.publish()

    zombie.before_commit = come_first
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(lake) == {"run/p/2": 2}


def test_without_the_token_both_are_there(lake, monkeypatch):
    """The counter-test: compare-and-set alone refuses a stale base, not a stale attempt."""
    monkeypatch.setattr(publishing, "token_is_stale", lambda *_: False)
    test = test_of_a_zombie_and_the_next_run_over_its_range_one_is_there

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(lake)
    assert names(lake) == {"run/p/1": 2, "run/p/2": 2}


def test_a_zombie_that_comes_first_is_adopted(lake):
    """It publishes between the successor's load and its bar, which is refused: the rows are found."""
    zombie, successor = Attempt(lake), Attempt(lake)
    successor.before_commit = zombie.publish

    receipt = successor.publisher.settle(successor.claim)

    assert receipt is not None
    assert receipt.rows == 2
    assert names(lake) == {"run/p/1": 2}


def test_barring_twice_is_barring_once(lake):
    """An attempt that died after its bar leaves it to the next one, which adds nothing."""
    attempt = Attempt(lake)
    assert attempt.publisher.settle(attempt.claim) is None
    assert attempt.publisher.settle(attempt.claim) is None
    assert attempt.commits == 1


def test_a_run_whose_word_was_taken_out_of_the_property_is_asked_of_the_ledger(iceberg):
    """Intervals: a zombie wakes up after its run is committed and its entry was removed as obsolete."""
    zombie = Attempt(iceberg, "interval/p/1", 10, scope="i1", lasting=False)
    successor = Attempt(iceberg, "interval/p/1", 30, scope="i1", lasting=False)
    other = Attempt(iceberg, "interval/p/2", 40, scope="i2", lasting=False)

    def finished():
        successor.publish()
        for attempt in (other, zombie):
            attempt.committed.add("interval/p/1")
        other.publish()

    zombie.before_commit = finished
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(iceberg) == {"interval/p/1": 2, "interval/p/2": 2}
    assert list(zombie.sink.load().published.runs) == ["i2"]


def test_parallel_intervals_do_not_fence_each_other(lake):
    """Tokens belong to one transactional id: a backfill's runs publish in any order."""
    late = Attempt(lake, "interval/p/1", 10, scope="i1", lasting=False)
    early = Attempt(lake, "interval/p/2", 40, scope="i2", lasting=False)
    late.before_commit = early.publish

    late.publish()

    assert names(lake) == {"interval/p/1": 2, "interval/p/2": 2}


def test_what_is_published_is_found_when_its_snapshot_is_expired(iceberg):
    """The summary expires with the snapshot; the property stays until the ledger has the run."""
    attempt = Attempt(iceberg)
    receipt = attempt.publish()
    append(iceberg)
    table = iceberg.table
    table.maintenance.expire_snapshots().by_ids([receipt.snapshot]).commit()

    again = Attempt(iceberg)

    assert again.publish() == receipt
    assert names(iceberg) == {"foreign": 1, "run/p/1": 2}


def test_without_the_property_what_has_expired_is_published_again(iceberg):
    """The counter-test: neither the table nor its history knows the run any more."""
    receipt = Attempt(iceberg).publish()
    append(iceberg)
    table = iceberg.table
    table.maintenance.expire_snapshots().by_ids([receipt.snapshot]).commit()
    with table.refresh().transaction() as transaction:
        transaction.remove_properties(PROPERTY)

    Attempt(iceberg).publish()
    assert names(iceberg) == {"foreign": 1, "run/p/1": 4}


def test_what_is_published_is_found_when_the_property_was_removed(iceberg):
    """By hand: the snapshot's summary is the second evidence."""
    receipt = Attempt(iceberg).publish()
    with iceberg.table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)

    assert Attempt(iceberg).publish() == receipt
    assert names(iceberg) == {"run/p/1": 2}


def test_runs_of_two_ledgers_with_the_same_id_and_token_publish_both(lake):
    """The same Dag in two clusters, or after its ledger was created again: tokens are offsets in a ledger."""
    for name in ("eos.0000000001", "eos.0000000002"):
        Attempt(lake, name=name).publish()
        Attempt(lake, name=name).publish()
    assert names(lake) == {"run/p/1": 4}


def test_a_bar_is_not_taken_for_a_run_without_rows_when_the_property_was_removed(iceberg):
    """Its snapshot has a token, too, and says that it is a bar."""
    barred = Attempt(iceberg)
    assert barred.publisher.settle(barred.claim) is None
    with iceberg.table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)

    assert Attempt(iceberg, "run/p/2", token=11).publish().rows == 2
    assert names(iceberg) == {"run/p/2": 2}


def test_a_table_that_was_made_again_is_refused(lake):
    """It is unknown whether the old one had the rows."""
    attempt = Attempt(lake)
    lake.drop()
    with pytest.raises(UnknownTable):
        attempt.publish()
    lake.create()

    with pytest.raises(TableReplaced):
        attempt.publish()
    with pytest.raises(TableReplaced):
        attempt.publisher.settle(attempt.claim)
    assert names(lake) == {}


def test_a_table_that_is_made_again_between_look_and_commit_is_not_appended_to(iceberg):
    """An empty one has the head that the look saw, none: only its id is another."""
    attempt = Attempt(iceberg)

    def made_again():
        iceberg.drop()
        iceberg.create()

    attempt.before_commit = made_again
    with pytest.raises(TableReplaced):
        attempt.publish()
    assert names(iceberg) == {}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("change", ["schema", "spec"])
def test_files_are_published_in_the_layout_that_they_were_written_for(iceberg, change, between):
    """It changes before the load, or between load and commit."""
    attempt = Attempt(iceberg)

    def changed():
        table = iceberg.table
        if change == "schema":
            from pyiceberg.types import LongType

            with table.update_schema() as update:
                update.add_column("more", LongType())
        else:
            with table.update_spec() as update:
                update.add_identity("name")

    if between:
        attempt.before_commit = changed
    else:
        changed()
    with pytest.raises(TableChanged):
        attempt.publish()
    assert names(iceberg) == {}


def test_without_the_comparison_of_layouts_nobody_can_tell_what_became_of_the_run(iceberg, monkeypatch):
    """Counter-test: files without partition values make the commit fail inside the library."""
    monkeypatch.setattr(publishing, "MAX_LOOKS", 2)
    attempt = Attempt(iceberg)
    with iceberg.table.update_spec() as update:
        update.add_identity("name")
    attempt.claim = replace(attempt.claim, layout=attempt.sink.load().layout)
    with pytest.raises(OutcomeUnknown):
        attempt.publish()
    assert attempt.commits == 2


def test_a_catalog_that_says_nothing_leaves_the_outcome_open(iceberg, monkeypatch):
    """Neither success nor failure: a retry asks again."""
    attempt = Attempt(iceberg)

    def away():
        raise ConnectionError("refused")

    monkeypatch.setattr(attempt.sink, "_opened", away)
    with pytest.raises(OutcomeUnknown, match="refused"):
        attempt.publish()


def test_a_branch_is_appended_to_and_main_is_left_alone(iceberg):
    """Each is guarded by its own head; a missing branch is refused."""
    with pytest.raises(UnknownTable, match="not a branch"):
        Attempt(iceberg, branch="audit")
    append(iceberg)
    table = iceberg.table
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    attempt = Attempt(iceberg, branch="audit")
    attempt.before_commit = Attempt(iceberg, branch="audit").publish

    attempt.publish()

    assert names(iceberg) == {"foreign": 1}
    assert names(iceberg, branch="audit") == {"foreign": 1, "run/p/1": 2}


def test_rows_of_a_branch_that_was_removed_are_found(iceberg):
    """The run is committed, not written again by a dismissal; the next one is refused."""
    append(iceberg)
    iceberg.table.manage_snapshots().create_branch(
        iceberg.table.current_snapshot().snapshot_id, "audit"
    ).commit()
    attempt, other = (Attempt(iceberg, scope=scope, branch="audit") for scope in ("cursor", "other"))
    receipt = attempt.publish()
    iceberg.table.manage_snapshots().remove_branch("audit").commit()
    assert attempt.publisher.settle(attempt.claim) == receipt
    with pytest.raises(UnknownTable, match="create the branch"):
        other.publish()


def test_partitions_are_written_apart(iceberg):
    """The table's spec decides, not the run."""
    with iceberg.table.update_spec() as update:
        update.add_identity("name")
    attempt = Attempt(iceberg)
    version = attempt.sink.load()
    writer = attempt.sink.writer(version, "test")
    files = writer.write(writer.columns(pa.table({"id": [1, 2, 3], "name": ["a", "b", "a"]})))
    receipt = attempt.publisher.publish(attempt.claim, files)

    assert (receipt.files, receipt.rows) == (2, 3)
    table = iceberg.table
    assert sorted(file["partition"]["name"] for file in table.inspect.files().to_pylist()) == ["a", "b"]
    assert table.scan(row_filter="name == 'a'").to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"type": "rset", "uri": "http://127.0.0.1:1"}, "the type 'rset', which is none of rest, "),
        ({"type": "dynamodb"}, r"pyiceberg\[dynamodb\]"),
        ({"type": "rest", "uri": "127.0.0.1:8181"}, "InvalidSchema"),
        ({"type": "rest", "uri": "http://127.0.0.1:port"}, "InvalidURL"),
        ({"type": "sql", "uri": "warehouse"}, "ArgumentError"),
        ({"type": "sql", "uri": "postgre://reader:s3cret-word@db/c"}, "NoSuchModuleError"),
        ({"type": "sql"}, "URI missing"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_a_wrong_setting(properties, says):
    """No catalog was contacted, and a retry would have the same result."""
    with pytest.raises(ConfigurationError, match=rf"iceberg:c/db\.t: .*{says}"):
        open_table(IcebergTable("db.t", catalog="c", properties=properties), "eos.x").load()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"format-version": 4}, ConfigurationError, "cannot read the table's metadata: .*'4'"),
        ({"location": 5}, OutcomeUnknown, "a retry asks again"),
    ],
    ids=["a later format", "not what a catalog writes"],
)
def test_metadata_of_a_later_format_is_no_catalog_that_is_away(iceberg, changes, error, says):
    """Upgraded by another engine: each retry would fail, too."""
    location = Path(iceberg.table.metadata_location.removeprefix("file://"))
    location.write_text(json.dumps({**json.loads(location.read_text()), **changes}))
    with pytest.raises(error, match=f"(?s){says}"):
        open_table(iceberg.sink(), PROPERTY).load()
