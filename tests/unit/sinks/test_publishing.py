"""Rows are in a table's history once: against a real catalog, with commits of others at every place between.

Each test of a protection has its counter-test beside it, in which the protection is taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos.exceptions import OutcomeUnknown, RunFenced, TableChanged, TableReplaced, UnknownTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.run import publishing
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.sinks.iceberg import IcebergSink

PROPERTY = "eos.0123456789"


class Attempt:
    """A process that publishes: a handle of its own on the catalog, and files of its own.

    :ivar committed: run keys that the ledger holds.
    :ivar before_commit: called once, between the attempt's look and its commit.
    """

    def __init__(self, warehouse, key="run/p/1", token=10, *, scope="cursor", lasting=True, branch=None):
        sink = IcebergTable("db.t", catalog="c", branch=branch, properties=warehouse)
        self.sink = IcebergSink(sink, PROPERTY)
        self.committed: set[str] = set()
        self.before_commit: Callable[[], object] | None = None
        self.after_commit: Callable[[], object] | None = None
        self.commits = 0
        self._commit, self.sink.commit = self.sink.commit, self._watched
        self.publisher = Publisher(self.sink, self._asked, sleep=lambda _: None)
        version = self.sink.load()
        self.claim = Claim(key, scope, token, version.layout, lasting, (("eos.run-key", key),))
        rows = pa.table({"id": [token * 10, token * 10 + 1], "name": [key, key]})
        writer = self.sink.writer(version, "test")
        self.files = writer.write(writer.columns(rows))

    def _asked(self, keys):
        return frozenset(self.committed & set(keys))

    def _watched(self, *arguments):
        self.commits += 1
        before, self.before_commit = self.before_commit, None
        if before is not None:
            before()
        receipt = self._commit(*arguments)
        after, self.after_commit = self.after_commit, None
        if after is not None:
            after()
        return receipt

    def publish(self):
        return self.publisher.publish(self.claim, self.files)


def names(warehouse, branch=None):
    """The table's rows, as another reader has them: how often each run's name is there."""
    table = load_catalog("c", **warehouse).load_table("db.t")
    scan = table.scan() if branch is None else table.scan().use_ref(branch)
    rows = scan.to_arrow().column("name").to_pylist()
    return {name: rows.count(name) for name in sorted(set(rows))}


def append(warehouse, name="foreign"):
    """A writer that knows nothing of us."""
    table = load_catalog("c", **warehouse).load_table("db.t")
    table.append(pa.table({"id": [1], "name": [name]}, schema=table.schema().as_arrow()))


def test_a_table_says_which_run_and_which_offsets_it_holds(warehouse):
    """The key stands in the snapshot's summary and in one property of the table."""
    attempt = Attempt(warehouse)
    receipt = attempt.publish()

    table = load_catalog("c", **warehouse).load_table("db.t")
    assert names(warehouse) == {"run/p/1": 2}
    assert (receipt.rows, receipt.files) == (2, 1)
    assert table.current_snapshot().snapshot_id == receipt.snapshot
    assert table.current_snapshot().summary["eos.run-key"] == "run/p/1"
    assert [name for name in table.properties if name.startswith("eos.")] == [PROPERTY]


def test_the_same_claim_is_published_once_whatever_comes_between(warehouse):
    """Two attempts at one INTENT, one between the other's look and commit: the second adopts."""
    first, second = Attempt(warehouse), Attempt(warehouse)
    published = []
    first.before_commit = lambda: published.append(second.publish())

    assert first.publish() == published[0]
    assert names(warehouse) == {"run/p/1": 2}


def test_without_the_compare_and_set_it_is_published_twice(warehouse, monkeypatch):
    """The counter-test: the commit takes whatever base it finds, as the library does by itself."""
    first, second = Attempt(warehouse), Attempt(warehouse)
    first.before_commit = second.publish
    real = first._commit

    def without(version, *arguments):
        return real(replace(version, table=first.sink.load().table), *arguments)

    first._commit = without

    first.publish()

    assert names(warehouse) == {"run/p/1": 4}


def test_writers_that_know_nothing_of_us_cost_a_look(warehouse):
    """A foreign append between look and commit: the table is looked at again, the files stay."""
    attempt = Attempt(warehouse)
    attempt.before_commit = lambda: append(warehouse)

    attempt.publish()

    assert names(warehouse) == {"foreign": 1, "run/p/1": 2}
    assert attempt.commits == 2


@pytest.mark.parametrize("error", [ConnectionError("reset"), RuntimeError("proxy: 504")])
def test_a_lost_answer_is_looked_up(warehouse, error):
    """The catalog committed and did not say so."""
    attempt = Attempt(warehouse)

    def lost():
        raise error

    attempt.after_commit = lost
    receipt = attempt.publish()

    assert names(warehouse) == {"run/p/1": 2}
    assert attempt.commits == 1
    assert receipt.rows == 2


def test_a_refusal_of_a_commit_that_was_done_keeps_its_files(warehouse):
    """A proxy sends a commit twice: the second is refused, the first stands, with all its manifests."""
    from airflow_eos.ports import TableMoved

    attempt = Attempt(warehouse)

    def refused():
        raise TableMoved("409")

    attempt.after_commit = refused
    attempt.publish()

    assert names(warehouse) == {"run/p/1": 2}


def test_a_claim_that_was_not_published_is_barred(warehouse):
    """T4, a zombie: it looked before its successor barred it, and wakes to commit."""
    zombie, successor = Attempt(warehouse), Attempt(warehouse)
    zombie.before_commit = lambda: successor.publisher.settle(successor.claim)

    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(warehouse) == {}


def test_of_a_zombie_and_the_next_run_over_its_range_one_is_there(warehouse):
    """The next run bars the open claim and publishes the same records, with a higher token."""
    zombie = Attempt(warehouse, "run/p/1", 10)
    following = Attempt(warehouse, "run/p/2", 20)

    def come_first():
        assert following.publisher.settle(zombie.claim) is None
        following.publish()

    zombie.before_commit = come_first
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(warehouse) == {"run/p/2": 2}


def test_without_the_token_both_are_there(warehouse, monkeypatch):
    """The counter-test: compare-and-set alone refuses a stale base, not a stale attempt."""
    monkeypatch.setattr(publishing, "token_is_stale", lambda *_: False)
    test = test_of_a_zombie_and_the_next_run_over_its_range_one_is_there

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(warehouse)
    assert names(warehouse) == {"run/p/1": 2, "run/p/2": 2}


def test_a_zombie_that_comes_first_is_adopted(warehouse):
    """The zombie publishes between the successor's look and its bar, which is refused: the rows are found."""
    zombie, successor = Attempt(warehouse), Attempt(warehouse)
    successor.before_commit = zombie.publish

    receipt = successor.publisher.settle(successor.claim)

    assert receipt is not None
    assert receipt.rows == 2
    assert names(warehouse) == {"run/p/1": 2}


def test_barring_twice_is_barring_once(warehouse):
    """An attempt that died behind its bar leaves it to the next one, which adds nothing."""
    attempt = Attempt(warehouse)
    assert attempt.publisher.settle(attempt.claim) is None
    assert attempt.publisher.settle(attempt.claim) is None
    assert attempt.commits == 1


def test_a_run_whose_word_was_taken_out_of_the_property_is_asked_of_the_ledger(warehouse):
    """Intervals: a zombie wakes when its successor is committed and others have tidied the property up."""
    zombie = Attempt(warehouse, "interval/p/1", 10, scope="i1", lasting=False)
    successor = Attempt(warehouse, "interval/p/1", 30, scope="i1", lasting=False)
    other = Attempt(warehouse, "interval/p/2", 40, scope="i2", lasting=False)

    def finished():
        successor.publish()
        for one in (other, zombie):
            one.committed.add("interval/p/1")
        other.publish()

    zombie.before_commit = finished
    with pytest.raises(RunFenced):
        zombie.publish()
    assert names(warehouse) == {"interval/p/1": 2, "interval/p/2": 2}
    assert list(zombie.sink.load().published.runs) == ["i2"]


def test_parallel_intervals_do_not_fence_each_other(warehouse):
    """Tokens are of one transactional id: a backfill's runs publish in any order."""
    late = Attempt(warehouse, "interval/p/1", 10, scope="i1", lasting=False)
    early = Attempt(warehouse, "interval/p/2", 40, scope="i2", lasting=False)
    late.before_commit = early.publish

    late.publish()

    assert names(warehouse) == {"interval/p/1": 2, "interval/p/2": 2}


def test_what_is_published_is_found_when_its_snapshot_is_expired(warehouse):
    """The summary goes with the snapshot, the property stays until the ledger has the run."""
    attempt = Attempt(warehouse)
    receipt = attempt.publish()
    append(warehouse)
    table = load_catalog("c", **warehouse).load_table("db.t")
    table.maintenance.expire_snapshots().by_ids([receipt.snapshot]).commit()

    again = Attempt(warehouse)

    assert again.publish() == receipt
    assert names(warehouse) == {"foreign": 1, "run/p/1": 2}


def test_what_is_published_is_found_when_the_property_was_removed(warehouse):
    """By hand: the snapshot's summary is the second witness."""
    receipt = Attempt(warehouse).publish()
    with load_catalog("c", **warehouse).load_table("db.t").transaction() as transaction:
        transaction.remove_properties(PROPERTY)

    assert Attempt(warehouse).publish() == receipt
    assert names(warehouse) == {"run/p/1": 2}


def test_a_table_that_was_made_again_is_refused(warehouse):
    """Whether the old one had the rows nobody can tell."""
    attempt = Attempt(warehouse)
    catalog = load_catalog("c", **warehouse)
    schema = catalog.load_table("db.t").schema()
    catalog.drop_table("db.t")
    with pytest.raises(UnknownTable):
        attempt.publish()
    catalog.create_table("db.t", schema=schema)

    with pytest.raises(TableReplaced):
        attempt.publish()
    with pytest.raises(TableReplaced):
        attempt.publisher.settle(attempt.claim)
    assert names(warehouse) == {}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("change", ["schema", "spec"])
def test_files_are_published_in_the_layout_that_they_were_written_for(warehouse, change, between):
    """Changed before the look, and between look and commit."""
    attempt = Attempt(warehouse)

    def changed():
        table = load_catalog("c", **warehouse).load_table("db.t")
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
    assert names(warehouse) == {}


def test_a_catalog_that_says_nothing_leaves_the_outcome_open(warehouse, monkeypatch):
    """No success and no failure: a retry asks again."""
    attempt = Attempt(warehouse)

    def away():
        raise ConnectionError("refused")

    monkeypatch.setattr(attempt.sink, "_opened", away)
    with pytest.raises(OutcomeUnknown, match="refused"):
        attempt.publish()


def test_a_branch_is_appended_to_and_main_is_left_alone(warehouse):
    """Both are guarded by their own head; a branch that is not there is refused."""
    with pytest.raises(UnknownTable, match="not a branch"):
        Attempt(warehouse, branch="audit")
    append(warehouse)
    table = load_catalog("c", **warehouse).load_table("db.t")
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    attempt = Attempt(warehouse, branch="audit")
    attempt.before_commit = Attempt(warehouse, branch="audit").publish

    attempt.publish()

    assert names(warehouse) == {"foreign": 1}
    assert names(warehouse, "audit") == {"foreign": 1, "run/p/1": 2}


def test_partitions_are_written_apart(warehouse):
    """The table's spec decides, not the run."""
    with load_catalog("c", **warehouse).load_table("db.t").update_spec() as update:
        update.add_identity("name")
    attempt = Attempt(warehouse)
    version = attempt.sink.load()
    writer = attempt.sink.writer(version, "test")
    files = writer.write(writer.columns(pa.table({"id": [1, 2, 3], "name": ["a", "b", "a"]})))
    receipt = attempt.publisher.publish(attempt.claim, files)

    assert (receipt.files, receipt.rows) == (2, 3)
    table = load_catalog("c", **warehouse).load_table("db.t")
    assert sorted(one["partition"]["name"] for one in table.inspect.files().to_pylist()) == ["a", "b"]
    assert table.scan(row_filter="name == 'a'").to_arrow().num_rows == 2
