"""Rows are in a PostgreSQL table once: on a real server, with other commits at every point.

Each test of a protection has its counter-test next to it, which removes the protection. Rows are counted
by ``psql``.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import uuid
from contextlib import nullcontext, suppress
from dataclasses import replace
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    OutcomeUnknown,
    RecordRefused,
    RunFenced,
    SendError,
    StagedRowsLost,
    TableChanged,
    TableRefused,
    TableReplaced,
    UnknownTable,
)
from airflow_eos.model.table import EarlierRows, TableReceipt
from airflow_eos.operations.postgres_checks import rows_of_run
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.run import publishing
from airflow_eos.sinks import base_sink, postgres_rows, postgres_sink
from airflow_eos.sinks.opening import open_table
from airflow_eos.sinks.postgres_sink import PostgresSink
from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.postgres import PostgresServer
from tests.support.patience import wait_until
from tests.support.postgres_pooler import answering, message
from tests.support.postgres_tables import Database
from tests.support.publishing import PublishingAttempt

pytestmark = pytest.mark.process


class Attempt(PublishingAttempt):
    """An attempt with its own connection and staged rows."""

    def __init__(self, database, run="run/p/1", token=10, *, scope="cursor", lasting=True, rows=None, **sink):
        opened = PostgresSink(database.sink(**sink), f"eos.{database.schema}")
        super().__init__(opened, run, scope, token, lasting=lasting)
        self.writer = self.sink.writer(self.version, uuid.uuid4().hex[:20])
        self.stage(rows or {"id": [token * 10, token * 10 + 1], "name": [run, run]})

    def stage(self, rows):
        self.files += self.writer.write(self.writer.columns(pa.table(rows)))


def control_row(database):
    columns = "version, last_run->>'eos.run-key'"
    return database.sql(
        f"SELECT {columns} FROM airflow_eos.published WHERE pipeline = 'eos.{database.schema}'"
    )


def test_rows_and_the_note_that_they_are_published_are_one_transaction(database):
    """The receipt's snapshot is the transaction's id, which identifies the run's rows."""
    attempt = Attempt(database)
    receipt = attempt.publish()

    assert database.counts() == {"run/p/1": 2}
    assert (receipt.rows, receipt.files) == (2, 1)
    assert control_row(database) == [["1", "run/p/1"]]
    written_by = f"xmin::text::bigint = {receipt.snapshot} % (1::bigint << 32)"
    assert database.sql(f"SELECT count(*) FROM {database.table} WHERE {written_by}") == [["2"]]
    assert attempt.writer.staging not in database.staging()
    assert attempt.sink.load().published.runs["cursor"].receipt == receipt


def test_the_same_claim_is_published_once_whatever_comes_between(database):
    """Two attempts at one INTENT, one between the other's load and commit: the second adopts."""
    first, second = Attempt(database), Attempt(database)
    published = []
    first.before_commit = lambda: published.append(second.publish())

    assert first.publish() == published[0]
    assert database.counts() == {"run/p/1": 2}


def test_without_the_compared_version_it_is_published_twice(database, monkeypatch):
    """Counter-test: the row is locked, and any version of it is accepted."""
    first, second = Attempt(database), Attempt(database)
    first.before_commit = second.publish
    monkeypatch.setattr(PostgresSink, "_lock_version", lambda *_: None)

    first.publish()

    assert database.counts() == {"run/p/1": 4}


def test_two_attempts_at_the_same_moment_publish_once(database):
    """One waits for the other's row lock, sees its version, and adopts."""
    attempts = [Attempt(database) for _ in range(4)]
    receipts = []
    threads = [threading.Thread(target=lambda a=a: receipts.append(a.publish())) for a in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(receipts) == 4
    assert len(set(receipts)) == 1
    assert database.counts() == {"run/p/1": 2}


def test_other_writers_of_the_table_cost_nothing(database):
    """A foreign insert between load and commit, and one that is still open: the run waits for neither."""
    attempt = Attempt(database)
    attempt.before_commit = lambda: database.sql(f"INSERT INTO {database.table} VALUES (1, 'foreign')")
    with psycopg.connect(**database.properties) as other:
        other.execute(f"INSERT INTO {database.table} VALUES (2, 'open')")
        attempt.publish()

    assert database.counts() == {"foreign": 1, "open": 1, "run/p/1": 2}
    assert attempt.commits == 1


@pytest.mark.parametrize("error", [psycopg.OperationalError("reset"), RuntimeError("proxy: 504")])
def test_a_lost_answer_is_looked_up(database, error):
    """The server committed, but its answer was lost."""
    attempt = Attempt(database)

    def lost():
        raise error

    attempt.after_commit = lost
    receipt = attempt.publish()

    assert database.counts() == {"run/p/1": 2}
    assert attempt.commits == 1
    assert receipt.rows == 2


def test_a_transaction_whose_connection_is_cut_is_done_again(database, monkeypatch):
    """The server ends the session before the commit: the rows are still staged."""
    attempt = Attempt(database)
    cut = []

    def insert(sink, connection, *arguments):
        rows = real(sink, connection, *arguments)
        if not cut:
            cut.append(connection.info.backend_pid)
            database.sql(f"SELECT pg_terminate_backend({cut[0]}, 10000)")
        return rows

    real = PostgresSink._insert
    monkeypatch.setattr(PostgresSink, "_insert", insert)
    attempt.publish()

    assert database.counts() == {"run/p/1": 2}
    assert attempt.commits == 2


def test_a_commit_that_fails_leaves_no_connection(database, monkeypatch):
    """The outcome is looked up and the commit retried; the failed session is closed."""
    attempt = Attempt(database)
    failures = [psycopg.OperationalError("the connection broke")]
    commit = psycopg.Connection.commit

    def commit_or_fail(connection):
        if failures and attempt.commits:
            raise failures.pop()
        commit(connection)

    monkeypatch.setattr(psycopg.Connection, "commit", commit_or_fail)
    attempt.publish()

    assert (attempt.commits, failures) == (2, [])
    assert database.counts() == {"run/p/1": 2}
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-eos'"
    wait_until(lambda: database.sql(query) == [["0"]])


def test_a_claim_that_was_not_published_is_barred(database):
    """A zombie: it loaded the table before its successor barred it, and wakes up to commit."""
    zombie, successor = Attempt(database), Attempt(database)
    zombie.before_commit = lambda: successor.publisher.settle(successor.claim)

    with pytest.raises(RunFenced):
        zombie.publish()
    assert database.counts() == {}


def test_of_a_zombie_and_the_next_run_over_its_range_one_is_there(database):
    """The next run bars the open claim and publishes the same records, with a higher token."""
    zombie = Attempt(database, "run/p/1", 10)
    following = Attempt(database, "run/p/2", 20)

    def come_first():
        assert following.publisher.settle(zombie.claim) is None
        following.publish()

    zombie.before_commit = come_first
    with pytest.raises(RunFenced):
        zombie.publish()
    assert database.counts() == {"run/p/2": 2}


def test_without_the_token_both_are_there(database, monkeypatch):
    """Counter-test: a compared version refuses a stale load, not a stale attempt."""
    monkeypatch.setattr(publishing, "token_is_stale", lambda *_: False)
    test = test_of_a_zombie_and_the_next_run_over_its_range_one_is_there

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(database)
    assert database.counts() == {"run/p/1": 2, "run/p/2": 2}


def test_a_zombie_that_comes_first_is_adopted(database):
    """It publishes between the successor's load and its bar, which is refused: the rows are found."""
    zombie, successor = Attempt(database), Attempt(database)
    successor.before_commit = zombie.publish

    receipt = successor.publisher.settle(successor.claim)

    assert receipt is not None
    assert database.counts() == {"run/p/1": 2}


def test_rows_that_others_have_deleted_are_not_written_again(database):
    """The note says that they were published: later changes are not the run's business."""
    receipt = Attempt(database).publish()
    database.sql(f"TRUNCATE {database.table}")

    assert Attempt(database).publish() == receipt
    assert database.counts() == {}


def test_a_run_whose_note_was_taken_out_is_asked_of_the_ledger(database):
    """Intervals: a zombie wakes up after its run is committed and another run removed obsolete notes."""
    zombie = Attempt(database, "interval/p/1", 10, scope="i1", lasting=False)
    successor = Attempt(database, "interval/p/1", 30, scope="i1", lasting=False)
    other = Attempt(database, "interval/p/2", 40, scope="i2", lasting=False)

    def finished():
        successor.publish()
        for attempt in (other, zombie):
            attempt.committed.add("interval/p/1")
        other.publish()

    zombie.before_commit = finished
    with pytest.raises(RunFenced):
        zombie.publish()
    assert database.counts() == {"interval/p/1": 2, "interval/p/2": 2}
    assert list(zombie.sink.load().published.runs) == ["i2"]


def test_parallel_intervals_do_not_fence_each_other(database):
    """Tokens belong to one transactional id: a backfill's runs publish in any order."""
    late = Attempt(database, "interval/p/1", 10, scope="i1", lasting=False)
    early = Attempt(database, "interval/p/2", 40, scope="i2", lasting=False)
    late.before_commit = early.publish

    late.publish()

    assert database.counts() == {"interval/p/1": 2, "interval/p/2": 2}


def test_a_backfill_publishes_at_the_same_moment(database):
    """Each run waits for the row that they share, loads it again, and adds its own entry."""
    attempts = [
        Attempt(database, f"interval/p/{i}", 10 * i + 10, scope=f"i{i}", lasting=False) for i in range(6)
    ]
    threads = [threading.Thread(target=attempt.publish) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert database.counts() == {f"interval/p/{i}": 2 for i in range(6)}
    assert sorted(attempts[0].sink.load().published.runs) == [f"i{i}" for i in range(6)]


@pytest.mark.parametrize("lost", ["the table", "the note", "all notes"])
def test_what_can_no_longer_tell_is_refused(database, lost):
    """A recreated table, or a removed note."""
    attempt = Attempt(database)
    if lost == "the table":
        database.sql(f"DROP TABLE {database.table}")
        with pytest.raises(UnknownTable):
            attempt.publish()
        database.create()
    elif lost == "the note":
        database.sql(f"DELETE FROM airflow_eos.published WHERE pipeline = 'eos.{database.schema}'")
    else:
        database.sql("DROP TABLE airflow_eos.published")

    with pytest.raises(TableReplaced):
        attempt.publish()
    with pytest.raises(TableReplaced):
        attempt.publisher.settle(attempt.claim)
    assert database.counts() == {}


def test_a_note_that_is_made_anew_between_look_and_commit_is_not_the_one_that_was_seen(database):
    """It begins at the same version: its id is another one."""
    attempt = Attempt(database)

    def made_anew():
        database.sql(f"DELETE FROM airflow_eos.published WHERE pipeline = 'eos.{database.schema}'")
        PostgresSink(database.sink(), f"eos.{database.schema}").load()

    attempt.before_commit = made_anew
    with pytest.raises(TableReplaced):
        attempt.publish()
    assert database.counts() == {}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(
    "change", ["ADD more int", "DROP name", "ALTER name TYPE varchar(5)", "ALTER name SET NOT NULL"]
)
def test_rows_are_published_for_the_columns_that_they_were_staged_for(database, change, between):
    """The table changes before the load, or between load and commit."""
    attempt = Attempt(database)

    def changed():
        database.sql(f"ALTER TABLE {database.table} {change}")

    if between:
        attempt.before_commit = changed
    else:
        changed()
    with pytest.raises(TableChanged):
        attempt.publish()
    assert database.sql(f"SELECT count(*) FROM {database.table}") == [["0"]]


def test_a_database_that_says_nothing_leaves_the_outcome_open(database):
    """Neither success nor failure: a retry asks again."""
    attempt = Attempt(database)
    attempt.sink._sink = replace(attempt.sink._sink, properties={**database.properties, "host": "/nowhere"})
    with pytest.raises(OutcomeUnknown, match="nowhere"):
        attempt.publish()


# -- what the database refuses --


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        ("PRIMARY KEY (id)", "t_pkey"),
        ("CONSTRAINT late UNIQUE (id) DEFERRABLE INITIALLY DEFERRED", "late"),
        ("CONSTRAINT small CHECK (id < 100)", "small"),
        ("FOREIGN KEY (id) REFERENCES {schema}.others", "t_id_fkey"),
    ],
)
def test_a_violated_constraint_is_final_and_named(database, constraint, names):
    """At the first try, with no row of the run in the table; the next attempt bars the claim."""
    database.sql(f"CREATE TABLE {database.schema}.others (id bigint PRIMARY KEY)")
    database.sql(f"INSERT INTO {database.schema}.others VALUES (100)")
    database.sql(
        f"INSERT INTO {database.table} VALUES (1, 'old'), (101, 'old')"
        if "small" not in names
        else "SELECT 1"
    )
    if "FOREIGN" in constraint:
        database.sql(f"DELETE FROM {database.table}")
    database.sql(f"ALTER TABLE {database.table} ADD {constraint.format(schema=database.schema)}")
    attempt = Attempt(database)
    before = database.counts()
    with pytest.raises(TableRefused, match=names):
        attempt.publish()

    assert attempt.commits == 1
    assert database.counts() == before
    assert attempt.publisher.settle(attempt.claim) is None


RAISES = [
    ("RAISE EXCEPTION 'not on Sundays'", "not on Sundays", 1),
    ("PERFORM FROM nowhere", 'relation "nowhere" does not exist', 1),
    ("RAISE EXCEPTION 'invalid geometry' USING ERRCODE = 'XX000'", "invalid geometry", 2),
]
"""Statements of a function, the error's text, and the number of commits after which it is final."""


@pytest.mark.parametrize(("body", "message", "commits"), RAISES)
def test_a_trigger_that_raises_is_final(database, body, message, commits):
    """Whatever the database refuses because of the rows or of its own definitions.

    The code of an internal error may also be that of an extension: it is final if it repeats.
    """
    database.sql(
        f"CREATE FUNCTION {database.schema}.no() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {body}; END $$; "
        f"CREATE TRIGGER no BEFORE INSERT ON {database.table} FOR EACH ROW "
        f"EXECUTE FUNCTION {database.schema}.no()"
    )
    attempt = Attempt(database)
    with pytest.raises(TableRefused, match=message):
        attempt.publish()
    assert attempt.commits == commits


def test_a_table_that_its_subscribers_need_a_key_of_is_final(database):
    """Updated rows cannot be replicated to them: the hint says what to alter."""
    database.sql(
        f"CREATE UNIQUE INDEX ON {database.table} (id); "
        f"CREATE PUBLICATION {database.schema} FOR TABLE {database.table}"
    )
    attempt = upsert(database, 10, {"id": [1], "name": ["a"]})
    with pytest.raises(TableRefused, match="REPLICA IDENTITY"):
        attempt.publish()
    assert attempt.commits == 1


def test_a_statement_that_the_driver_cannot_send_is_final(database, monkeypatch):
    """A retry could not send it either."""
    attempt = Attempt(database)
    monkeypatch.setattr(PostgresSink, "_insert", lambda _, connection, *__: connection.execute("%", (1,)))
    with pytest.raises(TableRefused, match="placeholder"):
        attempt.publish()
    assert attempt.commits == 1


def test_a_conflict_of_transactions_is_tried_again(database, monkeypatch, caplog):
    """A deadlock, or a lock that is not granted in time, is not the fault of the rows."""
    caplog.set_level("INFO")
    attempt = Attempt(database)
    monkeypatch.setattr(postgres_sink, "_SETTINGS", "SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(**database.properties) as other:
        other.execute(f"LOCK TABLE {database.table} IN ACCESS EXCLUSIVE MODE")
        released = []

        def release():
            released.append(other.rollback())

        def watched(*arguments):
            if attempt.commits == 2:
                release()
            return real(*arguments)

        real, attempt.sink.commit = attempt.sink.commit, watched
        attempt.publish()
    assert attempt.commits == 3
    assert caplog.text.count("nothing was published, the table is looked at again: LockNotAvailable") == 2
    assert database.counts() == {"run/p/1": 2}


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize(
    ("run", "escaped"),
    [
        ("run/p/ä한\\u", "run/p/\\xe4\\ud55c\\u"),
        ("run/p/\0", "run/p/\\x00"),
        ("run/p/\ud800", "run/p/\\ud800"),
    ],
    ids=["letters", "NUL", "surrogate"],
)
def test_a_note_names_its_run_in_a_database_of_any_encoding(database, encoding, run, escaped):
    """With escapes where the database lacks a character; its text columns accept only those it has."""
    name = database.schema
    database.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    properties = {**database.properties, "dbname": name}
    try:
        with psycopg.connect(**properties, client_encoding="utf8", autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}; CREATE TABLE {database.table} (id bigint, name text)")
            rows = {"id": [1], "name": ["ä"]}
            Attempt(database, run, properties=properties, rows=rows).publish()
            assert Attempt(database, run, properties=properties, rows=rows).publish().rows == 1
            published = "FROM airflow_eos.published WHERE last_run IS NOT NULL"
            ((noted,),) = connection.execute(f"SELECT last_run->>'eos.run-key' {published}")
            assert noted == (run if encoding == "UTF8" and "ä" in run else escaped)
            assert connection.execute(f"SELECT name FROM {database.table}").fetchall() == [("ä",)]
            if encoding == "LATIN1":
                with pytest.raises(RecordRefused, match="no equivalent in encoding"):
                    Attempt(database, properties=properties, rows={"id": [1], "name": ["한"]})
    finally:
        database.sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_driver_that_stalls_inside_its_transaction_gives_the_locks_up(database, monkeypatch):
    """It holds the lock on the note's row; the server ends it, and its successor publishes."""
    bound = "idle_in_transaction_session_timeout"
    stalled, successor = Attempt(database), Attempt(database)
    reached, resume = threading.Event(), threading.Event()
    real = PostgresSink._insert

    def insert(sink, connection, *arguments):
        rows = real(sink, connection, *arguments)
        if sink is stalled.sink and not reached.is_set():
            assert connection.execute(f"SHOW {bound}").fetchone() == ("1min",)
            connection.execute(f"SET LOCAL {bound} = '100ms'")
            reached.set()
            resume.wait()
        return rows

    monkeypatch.setattr(PostgresSink, "_insert", insert)
    receipts = []
    thread = threading.Thread(target=lambda: receipts.append(stalled.publish()))
    thread.start()
    reached.wait()
    receipts.append(successor.publish())
    resume.set()
    thread.join()

    assert receipts[0] == receipts[1]
    assert database.counts() == {"run/p/1": 2}


# -- staged rows --


def test_a_copy_that_nobody_counts_is_not_published(database):
    """A repeated or speculative task has staged the same rows again, in the same table."""
    attempt = Attempt(database)
    attempt.writer.write(attempt.writer.columns(pa.table({"id": [100, 101], "name": ["run/p/1"] * 2})))
    attempt.publish()
    assert database.counts() == {"run/p/1": 2}


def test_a_copy_that_fails_stages_nothing(database):
    """It is one transaction: no part of a task's rows stays."""
    attempt = Attempt(database)
    rows = attempt.writer.columns(pa.table({"id": list(range(1000)), "name": ["x"] * 1000}))
    real = postgres_rows.csv_chunks

    def broken(table):
        yield from real(table)
        raise ConnectionError("the executor lost its network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_rows, "csv_chunks", broken)
        with pytest.raises(ConnectionError):
            attempt.writer.write(rows)
    assert database.sql(f"SELECT count(*) FROM airflow_eos.{attempt.writer.staging}") == [["2"]]


def test_a_copy_that_is_cancelled_says_nothing_about_a_row(database):
    """Whatever cancels it, such as a time-out: a retry may stage the same rows."""
    attempt = Attempt(database)
    properties = {**database.properties, "options": "-c statement_timeout=100ms"}
    attempt.writer = replace(attempt.writer, sink=database.sink(properties=properties))
    with psycopg.connect(**database.properties) as other:
        other.execute(f"LOCK TABLE airflow_eos.{attempt.writer.staging} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SendError, match="statement timeout") as caught:
            attempt.stage({"id": [1], "name": ["a"]})
    assert type(caught.value) is SendError


@pytest.mark.parametrize(("body", "message"), [raised[:2] for raised in RAISES])
def test_a_value_that_a_function_of_its_type_refuses_is_refused_with_its_row(database, body, message):
    """Whatever its error is, also that of a missing table, which is not the staging table."""
    s = database.schema
    database.sql(
        f"CREATE FUNCTION {s}.no(text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN true; END $$;"
        f"CREATE DOMAIN {s}.code AS text CHECK ({s}.no(VALUE)); ALTER TABLE {database.table} ADD c {s}.code"
    )
    with pytest.raises(RecordRefused, match=rf"{message} \[(.|\n)*line 1, column c: .x."):
        Attempt(database, rows={"id": [1], "c": ["x"]})


@pytest.mark.parametrize("bound", ["statement_timeout", "transaction_timeout"])
def test_a_publication_that_takes_longer_than_it_may_is_not_tried_again(database, bound):
    """A retry would take as long: the error names the setting to raise."""
    database.sql(
        f"CREATE FUNCTION {database.schema}.slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(10); RETURN NEW; END $$; CREATE TRIGGER slow BEFORE INSERT "
        f"ON {database.table} EXECUTE FUNCTION {database.schema}.slow()"
    )
    bounded = {**database.properties, "options": f"-c {bound}=300ms"}
    with pytest.raises(TableRefused, match=bound.replace("_timeout", " timeout")):
        Attempt(database, properties=bounded).publish()
    assert database.counts() == {}


@pytest.mark.parametrize("bound", ["statement_timeout", "transaction_timeout"])
def test_a_lock_that_is_held_longer_than_a_statement_may_take_is_tried_again(database, bound):
    """Another client's `ALTER TABLE` holds it; the time-out would otherwise be blamed on the publication."""
    bounded = {**database.properties, "options": f"-c {bound}=2s"}
    attempt = Attempt(database, properties=bounded)
    with psycopg.connect(**database.properties) as other:
        other.execute(f"LOCK TABLE {database.table} IN ACCESS EXCLUSIVE MODE")
        attempt.publisher.sleep = lambda _: other.rollback()
        attempt.publish()
    assert attempt.commits == 2
    assert database.counts() == {"run/p/1": 2}


def test_an_upsert_that_sorts_more_than_it_may_is_not_tried_again(database):
    """A retry would sort as much."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    bounded = {**database.properties, "options": "-c temp_file_limit=64kB -c work_mem=64kB"}
    rows = {"id": range(5_000), "name": ["n" * 50] * 5_000}
    attempt = Attempt(database, rows=rows, mode="upsert", key=["id"], properties=bounded)
    with pytest.raises(TableRefused, match="temp_file_limit"):
        attempt.publish()
    assert attempt.commits == 1


@pytest.mark.parametrize(
    "lost",
    ["DROP TABLE {0}", "TRUNCATE {0}", "DELETE FROM {0} WHERE id = 100", "INSERT INTO {0} SELECT * FROM {0}"],
    ids=["dropped", "all", "one", "twice"],
)
def test_staged_rows_that_are_not_as_they_were_staged_are_not_published(database, lost):
    """Whoever changed them, all or one: the run fails, and nothing of it is there."""
    attempt = Attempt(database)
    database.sql(lost.format(f"airflow_eos.{attempt.writer.staging}"))
    with pytest.raises(StagedRowsLost, match="staged 2 rows"):
        attempt.publish()
    assert database.counts() == {}
    assert attempt.publisher.settle(attempt.claim) is None


def test_without_the_count_an_empty_staging_table_is_published(database, monkeypatch):
    """Counter-test: a success without rows."""
    attempt = Attempt(database)
    database.sql(f"TRUNCATE airflow_eos.{attempt.writer.staging}")
    monkeypatch.setattr(PostgresSink, "_check_staged", lambda *_: None)
    assert attempt.publish().rows == 0


def test_what_an_attempt_left_behind_is_dropped_by_the_next_one_at_the_run(database):
    """Those of other runs only after a week, and never those of another pipeline."""
    sink = PostgresSink(database.sink(), f"eos.{uuid.uuid4().hex[:20]}")
    other = PostgresSink(database.sink(), f"eos.{uuid.uuid4().hex[:20]}")
    version, foreign = sink.load(), other.writer(other.load(), "a" * 20)
    first, beside = sink.writer(version, "a" * 20), sink.writer(version, "b" * 20)
    parts = beside.staging.split("_")
    old = "_".join([*parts[:2], "c" * 20, f"{int(parts[3], 16) - 8 * 86_400:x}", parts[4]])
    database.sql(f"CREATE TABLE airflow_eos.{old} ()")

    last = sink.writer(version, "a" * 20)

    staged = set(database.staging())
    assert not {first.staging, old} & staged
    assert {beside.staging, last.staging, foreign.staging} <= staged
    sink.close()
    assert {beside.staging, last.staging, foreign.staging} & set(database.staging()) == {foreign.staging}


def test_a_stray_task_that_still_writes_does_not_hold_the_publication_up(database):
    """Its staging table is left to a later attempt."""
    attempt = Attempt(database)
    with psycopg.connect(**database.properties) as stray:
        stray.execute(f"INSERT INTO airflow_eos.{attempt.writer.staging} VALUES (1, 'stray', 1)")
        attempt.publish()
    assert database.counts() == {"run/p/1": 2}
    attempt.sink.close()
    assert attempt.writer.staging not in database.staging()


def test_a_database_that_keeps_dropped_tables_keeps_no_run_back(database):
    """An event trigger protects every table, also those of staged rows."""
    s = database.schema
    attempt = Attempt(database)
    database.sql(
        f"CREATE FUNCTION {s}.keep() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION 'no drops'; END $$; CREATE EVENT TRIGGER {s} ON sql_drop "
        f"EXECUTE FUNCTION {s}.keep()"
    )
    try:
        attempt.publish()
    finally:
        database.sql(f"DROP EVENT TRIGGER {s}")
    assert database.counts() == {"run/p/1": 2}
    assert attempt.writer.staging in database.staging()


def test_what_is_published_survives_a_crash_of_the_server(monkeypatch):
    """Also for a role with asynchronous commits; the counter-test comes first: its run is lost."""
    with PostgresServer() as server:
        database = Database(server)
        database.create()
        assert database.sql("SHOW synchronous_commit") == [["off"]]
        # Dropping a table waits for the disk, too; a stray task may keep the staging table.
        monkeypatch.setattr(PostgresSink, "_drop", lambda *_: None)

        def publish_and_crash(run, token):
            attempt = Attempt(database, run, token)
            database.sql("CHECKPOINT")
            ((writer,),) = database.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
            os.kill(int(writer), signal.SIGSTOP)
            attempt.publish()
            server.crash()

        with monkeypatch.context() as patch:
            patch.setattr(
                postgres_sink, "_SETTINGS", postgres_sink._SETTINGS.replace("'on', 'off'", "'on', ''")
            )
            publish_and_crash("lost", 10)
        assert database.counts() == {}
        publish_and_crash("kept", 20)
        assert database.counts() == {"kept": 2}


def test_a_trigger_makes_no_commit_asynchronous(database, monkeypatch):
    """Some turn `synchronous_commit` off, until the end of the transaction, to load rows faster."""
    database.sql(
        f"CREATE FUNCTION {database.schema}.fast() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "SET LOCAL synchronous_commit = off; RETURN NEW; END $$; CREATE TRIGGER fast BEFORE INSERT ON "
        f"{database.table} FOR EACH ROW EXECUTE FUNCTION {database.schema}.fast()"
    )
    settings = []

    def drop(sink, connection, _):
        settings.extend(connection.execute("SHOW synchronous_commit").fetchone())

    attempt = Attempt(database)
    monkeypatch.setattr(PostgresSink, "_drop", drop)
    attempt.publish()
    assert settings == ["on"]
    assert database.counts() == {"run/p/1": 2}


# -- upserts --


def upsert(database, token, rows, **changes):
    return Attempt(database, f"run/p/{token}", token, rows=rows, mode="upsert", key=["id"], **changes)


@pytest.fixture
def standby_away(database):
    """The server commits only what a standby has confirmed, and there is no standby."""
    reload = "SELECT pg_reload_conf()"
    database.sql("ALTER SYSTEM SET synchronous_standby_names = 'away'")
    database.sql(reload)
    yield
    database.sql("ALTER SYSTEM RESET synchronous_standby_names")
    database.sql(reload)


def test_a_commit_that_waits_for_a_standby_is_told_and_so_is_one_that_did_without(
    database, monkeypatch, caplog, request
):
    """No PostgreSQL time-out ends the wait; cancelling it leaves the rows on one server."""
    monkeypatch.setattr(base_sink, "_SILENT_SECONDS", 0.5)
    attempt = Attempt(database)
    request.getfixturevalue("standby_away")
    at_work = threading.Thread(target=attempt.publish, daemon=True)
    at_work.start()
    wait_until(lambda: "SyncRep means" in caplog.text)
    assert at_work.is_alive()
    waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'airflow-eos'"
    wait_until(lambda: database.sql(f"SELECT pg_cancel_backend(pid) {waiting}") == [["t"]])
    at_work.join(60)
    assert not at_work.is_alive()
    assert "might not have been replicated to the standby" in caplog.text
    assert database.counts() == {"run/p/1": 2}


def test_an_upsert_replaces_the_row_of_its_key(database):
    """Within a run the last row of a key wins, by the order of files and rows; of two runs the later one."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id), ADD kept text DEFAULT 'd'")
    database.sql(f"INSERT INTO {database.table} VALUES (1, 'old', 'mine'), (9, 'other', 'mine')")
    attempt = upsert(database, 10, {"id": [1, 2, 1], "name": ["a", "b", "c"]})
    attempt.stage({"id": [2, 3], "name": ["d", "e"]})
    receipt = attempt.publish()
    assert receipt.rows == 3
    everything = f"SELECT id, name, kept FROM {database.table} ORDER BY id"
    others = [["9", "other", "mine"]]
    assert database.sql(everything) == [["1", "c", "mine"], ["2", "d", "d"], ["3", "e", "d"], *others]

    upsert(database, 20, {"id": [3, 1], "name": [None, "f"]}).publish()
    assert database.sql(everything) == [["1", "f", "mine"], ["2", "d", "d"], ["3", "", "d"], *others]


@pytest.mark.parametrize("repeats", [False, True])
def test_an_upsert_that_violates_a_unique_index_is_tried_once_more(database, repeats):
    """Beside REINDEX CONCURRENTLY, PostgreSQL refuses keys that another writer inserts at that moment."""
    database.sql(
        f"ALTER TABLE {database.table} ADD PRIMARY KEY (id); INSERT INTO {database.table} VALUES (7, 'a'); "
        f"CREATE UNIQUE INDEX t_pkey_ccnew ON {database.table} (name)"
    )
    attempt = upsert(database, 10, {"id": [1], "name": ["a"]})
    if not repeats:
        attempt.publisher.sleep = lambda _: database.sql(f"DROP INDEX {database.schema}.t_pkey_ccnew")
    with pytest.raises(TableRefused, match="t_pkey_ccnew") if repeats else nullcontext():
        attempt.publish()
    assert (attempt.commits, database.counts()) == (2, {"a": 1 if repeats else 2})


def test_an_upsert_that_violates_another_key_is_refused_though_its_values_differ(database):
    """A sequence is not rolled back: each try violates the key with the next number."""
    table = database.table
    database.sql(f"ALTER TABLE {table} ADD UNIQUE (id), ADD number bigserial PRIMARY KEY")
    database.sql(f"INSERT INTO {table} SELECT 100 + n, 'a', n FROM generate_series(1, 9) AS n")
    attempt = upsert(database, 10, {"id": [1], "name": ["b"]})
    with pytest.raises(TableRefused, match="_pkey"):
        attempt.publish()
    assert (attempt.commits, database.counts()) == (2, {"a": 9})


def test_an_error_that_passed_may_come_again_at_a_later_commit(database):
    """It is not taken for a repetition of the one before."""
    table, index = database.table, f"{database.schema}.t_pkey_ccnew"
    database.sql(f"ALTER TABLE {table} ADD PRIMARY KEY (id); INSERT INTO {table} VALUES (7, 'a')")
    attempt = upsert(database, 10, {"id": [1], "name": ["a"]})
    attempt.publisher.sleep = lambda _: database.sql(f"DROP INDEX {index}")
    for token in (10, 20):
        database.sql(f"DELETE FROM {table} WHERE id = 1")
        database.sql(f"CREATE UNIQUE INDEX t_pkey_ccnew ON {table} (name)")
        attempt.publisher.publish(replace(attempt.claim, key=f"run/{token}", token=token), attempt.files)
        attempt.writer, attempt.files = attempt.sink.writer(attempt.version, uuid.uuid4().hex[:20]), []
        attempt.stage({"id": [1], "name": ["a"]})
    assert (attempt.commits, database.counts()) == (4, {"a": 2})


def test_files_win_by_their_order_and_not_by_when_they_were_staged(database):
    """The last task may stage its rows first."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    attempt = upsert(database, 10, {"id": [1], "name": ["staged first, read last"]})
    attempt.stage({"id": [1], "name": ["staged last, read first"]})
    attempt.files.reverse()
    attempt.publish()
    assert database.values() == ["staged first, read last"]


def test_a_key_of_several_columns_and_nothing_but_a_key(database):
    """A row without other columns is inserted, unless its key exists."""
    database.sql(f"ALTER TABLE {database.table} ADD UNIQUE (name, id)")
    for token in (10, 20):
        rows = {"name": ["a", "a", "b"], "id": [1, 1, 1]}
        Attempt(database, "r", token, rows=rows, mode="upsert", key=["id", "name"]).publish()
    assert database.counts() == {"a": 1, "b": 1}


OUR_NAMES = ["number", "files", "staged", "excluded", "last_of_key", "x" * 63, "airflow_eos_target"]


@pytest.mark.parametrize("key", [True, False], ids=["key", "value"])
@pytest.mark.parametrize("name", OUR_NAMES)
def test_a_column_may_be_called_as_what_a_statement_has_beside_it(database, name, key):
    """Each column name occurs next to names that this package uses."""
    kept, changed = (name, "v") if key else ("k", name)
    database.sql(f'DROP TABLE {database.table}; CREATE TABLE {database.table} ("{kept}" int PRIMARY KEY)')
    database.sql(f'ALTER TABLE {database.table} ADD "{changed}" int')
    for token, values in enumerate([[7, 8, 9], [10, 11, 12]], start=10):
        rows = {kept: pa.array([1, 2, 1], pa.int32()), changed: pa.array(values, pa.int32())}
        Attempt(database, f"run/p/{token}", token, rows=rows, mode="upsert", key=[kept]).publish()
    assert database.sql(f'SELECT "{kept}", "{changed}" FROM {database.table} ORDER BY 1') == [
        ["1", "12"],
        ["2", "11"],
    ]


@pytest.mark.parametrize("name", ["excluded", "files", "staged", "%s {0}"])
def test_a_table_may_be_called_as_what_a_statement_has_beside_it(database, name):
    """PostgreSQL itself has a table ``excluded`` in an upsert."""
    database.sql(
        f'ALTER TABLE {database.table} ADD PRIMARY KEY (id); ALTER TABLE {database.table} RENAME TO "{name}"'
    )
    for token in (10, 20):
        upsert(
            database, token, {"id": [1, 1], "name": ["a", f"{token}"]}, name=f"{database.schema}.{name}"
        ).publish()
    assert database.sql(f'SELECT id, name FROM {database.schema}."{name}"') == [["1", "20"]]


@pytest.mark.parametrize("name", ["airflow_eos_file", "airflow_eos_position", "airflow_eos_row"])
def test_a_column_with_a_name_of_staged_rows_is_refused_at_the_look(database, name):
    """Before any input is read; for appends only one column has such a name."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id), ADD {name} bigint")
    with pytest.raises(UnknownTable, match=f"column '{name}'.* rename it"):
        PostgresSink(database.sink(mode="upsert", key=["id"]), "eos.p").load()
    if name == "airflow_eos_file":
        with pytest.raises(UnknownTable, match=f"column '{name}'.* rename it"):
            PostgresSink(database.sink(), "eos.p").load()
    else:
        Attempt(database).publish()
        assert database.counts() == {"run/p/1": 2}


def upsert_spellings(database, first, second):
    """Publish two runs, each with both spellings of one key, into an empty table; return its rows."""
    for token, values in ((10, (first, second)), (20, (second, first))):
        attempt = None
        for value in values:
            name = f"{value} of {token}"
            rows = {"k": pa.array([value]), "name": [name]}
            if attempt is None:
                attempt = Attempt(database, f"r/{token}", token, rows=rows, mode="upsert", key=["k"])
            else:
                attempt.stage(rows)
        attempt.publish()
    return database.sql(f"SELECT k, name FROM {database.table}")


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("numeric", Decimal("1.0"), Decimal("1.00")),
        ("float8", 0.0, -0.0),
        ("bpchar", "a", "a "),
        ("interval", "24:00:00", "1 day"),
        ("jsonb", '{"a": 1}', '{"a": 1.0}'),
        ("varchar(9)", "a", "a"),
        ("{s}.short", "a", "a"),
        ("{s}.mood", "good", "good"),
        ("{s}.pair", "(1,a)", "( 1,a)"),
        ("text[]", "{a}", "{ a }"),
        ("int4range", "[1,3)", "[1,2]"),
        ("cidr", "10.0.0.0/8", "10/8"),
        ("name", "a", "a"),
        ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000A"),
    ],
)
def test_values_that_a_type_holds_equal_are_one_key(database, kind, first, second):
    """In any spelling: the last row of the run wins, and the table keeps its own spelling."""
    s = database.schema
    database.sql(
        f"DROP TABLE {database.table}; CREATE DOMAIN {s}.short AS varchar(9); "
        f"CREATE TYPE {s}.mood AS ENUM ('good', 'bad'); CREATE TYPE {s}.pair AS (x int, y text)"
    )
    database.create(f"k {kind.format(s=s)} PRIMARY KEY, name text")
    assert [name for _, name in upsert_spellings(database, first, second)] == [f"{first} of 20"]


FOLDING = """CREATE FUNCTION {s}.compare(text, text) RETURNS int LANGUAGE sql IMMUTABLE AS
    'SELECT bttextcmp(lower($1), lower($2))';
CREATE FUNCTION {s}.lt(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) < lower($2)';
CREATE FUNCTION {s}.le(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) <= lower($2)';
CREATE FUNCTION {s}.eq(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) = lower($2)';
CREATE FUNCTION {s}.ge(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) >= lower($2)';
CREATE FUNCTION {s}.gt(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT lower($1) > lower($2)';
CREATE OPERATOR {s}.<% (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.lt);
CREATE OPERATOR {s}.<=% (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.le);
CREATE OPERATOR {s}.=% (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.eq);
CREATE OPERATOR {s}.>=% (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.ge);
CREATE OPERATOR {s}.>% (LEFTARG = text, RIGHTARG = text, FUNCTION = {s}.gt);
CREATE OPERATOR CLASS {s}.folding FOR TYPE text USING btree AS OPERATOR 1 {s}.<%, OPERATOR 2 {s}.<=%,
    OPERATOR 3 {s}.=%, OPERATOR 4 {s}.>=%, OPERATOR 5 {s}.>%, FUNCTION 1 {s}.compare(text, text)"""
"""An operator class that ignores case, like the type ``citext`` or an ICU collation."""
NO_ICU = "ICU is not supported in this build"
IGNORES_CASE = "CREATE COLLATION {s}.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.mark.parametrize("beside", ["", "CREATE UNIQUE INDEX ON {t} (k)"])
@pytest.mark.parametrize(
    ("statements", "columns", "index"),
    [
        (FOLDING, "k text", "k {s}.folding"),
        (FOLDING, "k varchar(9)", "k {s}.folding"),
        (IGNORES_CASE, "k text COLLATE {s}.ci", "k"),
        (IGNORES_CASE, "k text", "k COLLATE {s}.ci"),
        (IGNORES_CASE + "; CREATE DOMAIN {s}.d AS text COLLATE {s}.ci", "k {s}.d", "k"),
    ],
)
def test_values_that_the_unique_index_holds_equal_are_one_key(database, statements, columns, index, beside):
    """Its operator class and collation decide, even if another index has different ones."""
    names = {"s": database.schema, "t": database.table}
    try:
        database.sql(statements.format(**names))
    except EmbeddedServerError as error:
        if NO_ICU not in str(error):
            raise
        pytest.skip(NO_ICU)
    database.sql(f"DROP TABLE {database.table}")
    database.create(columns.format(**names) + ", name text")
    database.sql(
        f"CREATE UNIQUE INDEX ON {database.table} ({index.format(**names)}); {beside.format(**names)}"
    )
    assert upsert_spellings(database, "A", "a") == [["a", "A of 20"]]


@pytest.mark.parametrize(
    "index",
    [
        "INDEX ON {table} (id)",
        "UNIQUE INDEX ON {table} (id, name)",
        "UNIQUE INDEX ON {table} (id) WHERE name > 'a'",
        "UNIQUE INDEX ON {table} (abs(id))",
    ],
)
def test_a_key_that_no_unique_index_holds_is_refused_at_the_look(database, index):
    """Before any input is read."""
    database.sql(f"CREATE {index.format(table=database.table)}")
    with pytest.raises(UnknownTable, match="no primary key or unique index on exactly id"):
        upsert(database, 10, {"id": [1]})


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ("id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text", ["id"], "generates column 'id'"),
        ("id bigint, up bigint GENERATED ALWAYS AS (-id) STORED UNIQUE", ["up"], "generates column 'up'"),
        ("id int4range, at tstzrange, PRIMARY KEY (id, at WITHOUT OVERLAPS)", ["id", "at"], "it has: none"),
    ],
)
def test_a_key_that_no_row_can_name_is_refused_at_the_look(database, columns, key, message):
    """Its values are generated by the table, or compared by something else than equality."""
    database.sql(f"DROP TABLE {database.table}")
    database.create(columns)
    with pytest.raises(UnknownTable, match=message):
        PostgresSink(database.sink(mode="upsert", key=key), "eos.p").load()


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("ON UPDATE TO {} DO ALSO NOTHING", True),
        ("ON INSERT TO {} DO INSTEAD NOTHING", True),
        ("ON INSERT TO {} DO ALSO NOTHING; ALTER TABLE {} DISABLE RULE r", False),
        ("ON DELETE TO {} DO INSTEAD NOTHING", False),
    ],
)
def test_rules_that_an_upsert_cannot_have_are_refused_at_the_look(database, rule, refused):
    """PostgreSQL would refuse them after the INTENT; rows can be appended with any rule."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    database.sql(f"CREATE RULE r AS {rule.replace('{}', database.table)}")
    PostgresSink(database.sink(), "eos.p").load()
    upsert = {"mode": "upsert", "key": ["id"]}
    if not refused:
        Attempt(database, **upsert).publish()
        return
    with pytest.raises(UnknownTable, match="the rule 'r', with which PostgreSQL refuses ON CONFLICT"):
        PostgresSink(database.sink(**upsert), "eos.p").load()


def test_a_key_with_a_deferrable_constraint_beside_its_index_is_refused_at_the_look(database):
    """PostgreSQL uses every index on the key in an upsert, and refuses a deferrable one."""
    database.sql(
        f"ALTER TABLE {database.table} ADD PRIMARY KEY (id), ADD CONSTRAINT late UNIQUE (id) DEFERRABLE"
    )
    with pytest.raises(UnknownTable, match="deferrable"):
        upsert(database, 10, {"id": [1]})
    database.sql(f"ALTER TABLE {database.table} DROP CONSTRAINT late")
    upsert(database, 10, {"id": [1], "name": ["a"]}).publish()


def test_a_row_without_a_key_and_rows_of_different_columns_are_refused(database):
    """A unique index accepts any number of nulls; columns missing in some rows would be set by others."""
    database.sql(f"ALTER TABLE {database.table} ADD UNIQUE (name)")
    with pytest.raises(Exception, match="without a value in 'name'"):
        Attempt(database, rows={"id": [1], "name": [None]}, mode="upsert", key=["name"])
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    attempt = upsert(database, 10, {"id": [1], "name": ["a"]})
    attempt.stage({"id": [2]})
    with pytest.raises(TableRefused, match="different columns"):
        attempt.publish()


# -- set-up --


def test_a_role_gets_by_with_the_documented_rights(database, postgres_server):
    """The schema is its own, and the table accepts its rows; each missing privilege is named."""
    role = f"r{uuid.uuid4().hex[:8]}"
    other = Database(postgres_server)
    postgres_server.query(f"CREATE ROLE {role} LOGIN; CREATE DATABASE {role}")
    properties = {**database.properties, "user": role, "dbname": role}

    def sql(statement):
        with psycopg.connect(**{**database.properties, "dbname": role}, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    sql(f"CREATE SCHEMA {other.schema}; CREATE TABLE {other.table} (id bigint PRIMARY KEY, name text)")
    with pytest.raises(AuthorizationFailed, match="CREATE SCHEMA airflow_eos AUTHORIZATION"):
        Attempt(other, properties=properties)
    sql(f"CREATE SCHEMA airflow_eos AUTHORIZATION {role}")
    usage = f"GRANT USAGE ON SCHEMA {other.schema} TO ..."
    for granted in ("SELECT", "INSERT (id, name)"):  # LOCK TABLE needs the privilege on the whole table
        sql(f"GRANT {granted} ON {other.table} TO {role}")
        with pytest.raises(AuthorizationFailed, match=f"{usage}; GRANT INSERT ON {other.table} TO"):
            Attempt(other, properties=properties)
    sql(f"GRANT INSERT ON {other.table} TO {role}")
    with pytest.raises(AuthorizationFailed, match=rf"may not write it: {usage} \(docs"):
        Attempt(other, properties=properties)
    sql(f"GRANT USAGE ON SCHEMA {other.schema} TO {role}")
    Attempt(other, token=20, properties=properties).publish()
    with pytest.raises(AuthorizationFailed, match="GRANT SELECT, INSERT, UPDATE"):
        upsert(other, 30, {"id": [1]}, properties=properties)
    sql(f"GRANT SELECT, UPDATE ON {other.table} TO {role}")
    last = upsert(other, 40, {"id": [1], "name": ["x"]}, properties=properties)
    receipt = last.publish()
    assert sql(f"SELECT count(*) FROM {other.table}") == [(3,)]
    sql(f"REVOKE UPDATE ON {other.table} FROM {role}")
    assert last.publisher.settle(last.claim) == receipt
    postgres_server.query(f"DROP DATABASE {role}")
    postgres_server.query(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE {} DROP CONSTRAINT t_pkey", "unique index"),
        ("ALTER TABLE {} SET UNLOGGED", "SET LOGGED"),
    ],
)
def test_rows_of_a_table_that_can_no_longer_be_written_are_found(database, change, message):
    """The run is committed; the next one is refused before any input is read."""
    database.sql(f"ALTER TABLE {database.table} ADD PRIMARY KEY (id)")
    attempt = upsert(database, 10, {"id": [1], "name": ["a"]})
    receipt = attempt.publish()
    following = upsert(database, 20, {"id": [1], "name": ["b"]})
    database.sql(change.format(database.table))
    assert attempt.publisher.settle(attempt.claim) == receipt
    with pytest.raises(UnknownTable, match=message):
        following.publish()


def test_a_note_that_a_policy_hides_is_named(database):
    """Some systems enable row security on every table."""
    role, note = f"r{database.schema}", "airflow_eos.published"
    PostgresSink(database.sink(), "eos.p").load()
    database.sql(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA airflow_eos, {database.schema} TO {role}; "
        f"GRANT SELECT, INSERT ON {note} TO {role}; GRANT INSERT ON {database.table} TO {role}; "
        f"CREATE POLICY {role} ON {note} FOR INSERT TO {role} WITH CHECK (true); "
        f"ALTER TABLE {note} ENABLE ROW LEVEL SECURITY"
    )
    try:
        with pytest.raises(AuthorizationFailed, match=rf"a policy hides rows of {note}"):
            PostgresSink(database.sink(properties={**database.properties, "user": role}), "eos.p").load()
    finally:
        database.sql(f"ALTER TABLE {note} DISABLE ROW LEVEL SECURITY; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("DROP TABLE {t}", "does not exist"),
        ("DROP TABLE {t}; CREATE VIEW {t} AS SELECT 1 AS id", "a view"),
        ("ALTER TABLE {t} SET UNLOGGED", "SET LOGGED"),
    ],
)
def test_what_cannot_hold_rows_for_good_is_refused(database, make, message):
    """Before any input is read."""
    for statement in make.split(";"):
        database.sql(statement.format(t=database.table))
    with pytest.raises(UnknownTable, match=message):
        Attempt(database)


def test_a_partitioned_table_is_written(database):
    """PostgreSQL routes the rows; a row that fits no partition is refused."""
    database.sql(
        f"DROP TABLE {database.table}; "
        f"CREATE TABLE {database.table} (id bigint, name text) PARTITION BY LIST (name); "
        f"CREATE TABLE {database.schema}.a PARTITION OF {database.table} FOR VALUES IN ('run/p/1')"
    )
    Attempt(database).publish()
    assert database.counts() == {"run/p/1": 2}
    with pytest.raises(TableRefused, match="no partition"):
        Attempt(database, "run/p/2", 20).publish()


@pytest.mark.parametrize(
    ("kind", "of", "message"),
    [
        ("UNLOGGED TABLE", "", r"its partition \S+\.b is unlogged, .* ALTER TABLE \S+\.b SET LOGGED"),
        ("FOREIGN TABLE", "SERVER {s}", r"its partition \S+\.b is a view, a foreign table"),
    ],
)
def test_a_partition_that_cannot_hold_rows_for_good_is_refused(database, kind, of, message):
    """At any depth: the rows are in the partitions."""
    s = database.schema
    database.sql(
        f"DROP TABLE {database.table}; "
        f"CREATE FOREIGN DATA WRAPPER {s}; CREATE SERVER {s} FOREIGN DATA WRAPPER {s}; "
        f"CREATE TABLE {database.table} (id bigint, name text) PARTITION BY LIST (name); "
        f"CREATE TABLE {s}.logged PARTITION OF {database.table} FOR VALUES IN ('run/p/1'); "
        f"CREATE TABLE {s}.a PARTITION OF {database.table} DEFAULT PARTITION BY LIST (id); "
        f"CREATE {kind} {s}.b PARTITION OF {s}.a DEFAULT {of.format(s=s)}"
    )
    with pytest.raises(UnknownTable, match=message):
        Attempt(database)
    database.sql(f"ALTER TABLE {s}.a DETACH PARTITION {s}.b")
    Attempt(database).publish()


def test_properties_are_checked_and_not_shown(database, caplog):
    """A misspelt one is named; passwords are in no repr, error or log, even at DEBUG."""
    with pytest.raises(ConfigurationError, match="pasword"):
        Attempt(database, properties={**database.properties, "pasword": "x"})
    secret = {**database.properties, "password": "hunter2"}
    with caplog.at_level(logging.DEBUG):
        attempt = Attempt(database, properties=secret)
        attempt.publish()
        with pytest.raises(OutcomeUnknown) as away:
            PostgresSink(database.sink(properties={**secret, "host": "/nowhere"}), "eos.x").load()
    shown = f"{attempt.sink._sink!r} {attempt.writer!r} {attempt.files!r} {away.value} {caplog.text}"
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sslmode": "sure"}, 'invalid sslmode value: "sure"'),
        ({"target_session_attrs": "primery"}, 'invalid target_session_attrs value: "primery"'),
        ({"host": "a,b", "port": "1,2,3"}, "3 port numbers to 2 hosts"),
        ({"connect_timeout": "soon", "password": "hunter2"}, "connect_timeout: 'soon'"),
        ({"options": "-c search_path=public -cno_such=1"}, 'parameter "no_such"'),
        ({"options": "--statement_timeout=soon"}, 'parameter "statement_timeout": "soon"'),
    ],
)
def test_a_property_with_an_impossible_value_is_no_server_that_is_away(database, changes, says):
    """No server was contacted, or one has named the setting: a retry would have the same result."""
    with pytest.raises(ConfigurationError, match=re.escape(says)) as failure:
        PostgresSink(database.sink(properties={**database.properties, **changes}), "eos.x").load()
    assert changes.get("password", "hunter2") not in str(failure.value)


@pytest.fixture(scope="module")
def locked_server():
    """A server that asks ``joe`` for a password, and has no free connection for ``guest``."""
    with PostgresServer() as server:
        server.query(
            "CREATE ROLE joe LOGIN SUPERUSER PASSWORD 'hunter2'; CREATE ROLE idle PASSWORD 'hunter2'; "
            "CREATE ROLE guest LOGIN CONNECTION LIMIT 0"
        )
        rules = ("postgres trust", "joe scram-sha-256", "idle scram-sha-256", "guest trust")
        (server.home / "data/pg_hba.conf").write_text("".join(f"local all {rule}\n" for rule in rules))
        server.query("SELECT pg_reload_conf()")
        wait_until(lambda: logs_in(server) is None)
        yield server


def logs_in(server):
    with suppress(psycopg.Error):
        return psycopg.connect(host=str(server.home), user="joe", dbname="postgres").close() or True


JOE = {"user": "joe", "password": "hunter2"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"password": "hunter3"}, 'password authentication failed for user "joe"'),
        ({"password": ""}, "no password supplied"),
        ({"user": "idle"}, 'role "idle" is not permitted to log in'),
        ({"user": "postgres", "dbname": "none"}, 'database "none" does not exist'),
        ({"user": "jo"}, 'no pg_hba.conf entry for host "[local]", user "jo"'),
        ({"host": "{home},{home}", "password": "hunter3"}, 'password authentication failed for user "joe"'),
    ],
)
def test_a_refused_login_is_no_server_that_is_away(locked_server, changes, says):
    """It stays refused until somebody corrects the connection."""
    database = Database(locked_server)
    properties = {**database.properties, **JOE, **changes}
    properties["host"] = properties["host"].format(home=locked_server.home)
    with pytest.raises(ConfigurationError, match=re.escape(says)) as failure:
        PostgresSink(database.sink(properties=properties), "eos.x").load()
    assert "hunter" not in str(failure.value)


@pytest.mark.parametrize(
    "changes", [{"user": "guest"}, {"host": "{home},/nowhere", "password": "hunter3"}], ids=["full", "away"]
)
def test_a_server_that_may_take_the_login_later_is_asked_again(locked_server, changes):
    """A server without a free connection, and one of several hosts that does not answer."""
    database = Database(locked_server)
    properties = {**database.properties, **JOE, **changes}
    properties["host"] = properties["host"].format(home=locked_server.home)
    with pytest.raises(OutcomeUnknown):
        PostgresSink(database.sink(properties=properties), "eos.x").load()


def test_a_password_that_changes_under_a_run_leaves_the_retry_to_the_new_one(locked_server):
    """The retry reads the connection again; the rows may be in the table by then."""
    database = Database(locked_server)
    database.create()
    attempt = Attempt(database, properties={**database.properties, **JOE})
    try:
        database.sql("ALTER ROLE joe PASSWORD 'hunter4'")
        with pytest.raises(SendError, match=r"staged: .* password authentication failed"):
            attempt.stage({"id": [1], "name": ["a"]})
        with pytest.raises(OutcomeUnknown, match=r"password authentication failed .* A retry"):
            attempt.sink.load()  # of the next round
        with pytest.raises(OutcomeUnknown, match=r"password authentication failed .* A retry"):
            attempt.publish()
    finally:
        database.sql("ALTER ROLE joe PASSWORD 'hunter2'")
    attempt.publish()
    assert database.counts() == {"run/p/1": 2}


def test_a_server_that_takes_no_rows_is_named_at_the_look(database):
    """A read-only role, and a standby before its promotion, to which the note was replicated."""
    role = f"r{uuid.uuid4().hex[:8]}"
    database.sql(
        f"CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET default_transaction_read_only = on"
    )
    Attempt(database).publish()
    limited = database.sink(properties={**database.properties, "user": role})
    with pytest.raises(OutcomeUnknown, match="default_transaction_read_only is on"):
        PostgresSink(limited, f"eos.{database.schema}").load()
    (check,) = table_checks(limited, dict)
    assert (check.status, "takes no rows" in check.found) == ("fail", True)
    database.sql(f"DROP ROLE {role}")
    with PostgresServer() as server:
        database = Database(server)
        database.create()
        attempt = Attempt(database)
        server.crash(lambda data: (data / "standby.signal").touch(mode=0o666))
        with pytest.raises(OutcomeUnknown, match="standby"):
            attempt.sink.load()
        with pytest.raises(OutcomeUnknown, match="standby"):
            attempt.publish()
        with pytest.raises(OutcomeUnknown, match="a standby, which may lag behind"):  # no mismatch
            rows_of_run(
                database.sink(), attempt.claim.layout.uuid, EarlierRows(TableReceipt(9, 1, 2), "label")
            )
        database.sql("SELECT pg_promote()")
        Attempt(database, token=20).publish()
        assert database.counts() == {"run/p/1": 2}


def pooler_of_statements():
    """A port that logs each client in, and refuses to begin a transaction, like PgBouncer."""
    refused = b"SFATAL\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"
    return answering(message(b"R", bytes(4)) + message(b"Z", b"I"), message(b"E", refused))


def test_a_pooler_that_gives_no_transactions_is_named_at_the_look(database):
    """Also by the doctor: a retry would meet the same pool."""
    with pooler_of_statements() as properties:
        sink = database.sink(properties=properties)
        with pytest.raises(ConfigurationError, match="pool_mode=transaction"):
            PostgresSink(sink, "eos.x").load()
        (check,) = table_checks(sink, dict)
    assert "pool_mode=transaction" in check.found


def test_a_pooler_without_a_free_connection_is_asked_again(database):
    """However often it refuses one: Supavisor gives the code of an internal error."""
    refused = b"SFATAL\0VFATAL\0CXX000\0Mno connection in time\0\0"
    with answering(message(b"R", bytes(4)) + message(b"Z", b"I"), message(b"E", refused)) as properties:
        sink = PostgresSink(database.sink(properties=properties), "eos.x")
        for _ in range(3):
            with pytest.raises(OutcomeUnknown, match="no connection in time"):
                sink.load()


def test_the_extra_that_is_missing_is_named(database, monkeypatch):
    """On the driver, with what to install."""
    import sys

    monkeypatch.setitem(sys.modules, "airflow_eos.sinks.postgres_sink", None)
    with pytest.raises(ConfigurationError, match=r"airflow-eos\[postgres\]"):
        open_table(database.sink(), "eos.x")
