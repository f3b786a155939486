"""What a reprocessing replaces in a PostgreSQL table: the rows of the run's transaction, or nothing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import psycopg
import pytest

from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, RunFenced, TableRewritten
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import EarlierRows
from airflow_eos.operations.postgres_checks import rows_of_run
from airflow_eos.run.replacing import file_label
from airflow_eos.sinks import postgres_catalog, postgres_sink
from airflow_eos.sinks.postgres_catalog import find_target
from airflow_eos.sinks.postgres_sink import PostgresSink
from airflow_eos_testing.postgres import PostgresServer
from tests.support.postgres_tables import Database
from tests.unit.sinks.test_postgres_publishing import Attempt

pytestmark = pytest.mark.process

OLD, NEW = "run/p/1", "run/p/1#1"


def published(database, run=OLD, **options):
    """Publish a run; return what a reprocessing knows of its rows."""
    return EarlierRows(Attempt(database, run, **options).publish(), file_label(run))


def again(database, *earlier, token=20, **options):
    """An attempt at a reprocessing that replaces the rows of earlier transactions."""
    attempt = Attempt(database, NEW, token, scope="again", lasting=False, reprocess="replace", **options)
    attempt.claim = replace(attempt.claim, replaces=earlier)
    return attempt


def insert(database, name="foreign"):
    """Insert as a writer that knows nothing of our runs."""
    database.sql(f"INSERT INTO {database.table} VALUES (1, '{name}')")


def test_the_rows_of_the_earlier_run_are_replaced_in_one_transaction(database):
    """Rows of other writers stay; a reader sees the old rows or the new ones."""
    insert(database)
    earlier = published(database)
    insert(database)
    attempt = again(database, earlier)
    with psycopg.connect(**database.properties) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        count = f"SELECT count(*) FROM {database.table} WHERE name LIKE 'run/%'"
        before = reader.execute(count).fetchone()
        attempt.publish()
        assert reader.execute(count).fetchone() == before == (2,)
    assert database.counts() == {"foreign": 2, NEW: 2}


def test_rounds_are_replaced_together_and_a_reprocessing_without_rows_takes_them_out(database):
    """Several transactions wrote the rounds; the reprocessing stages no rows."""
    rounds = [published(database, token=10), published(database, f"{OLD}/2", token=12)]
    attempt = again(database, *rounds)
    receipt = attempt.publisher.publish(attempt.claim, ())
    assert (receipt.files, receipt.rows) == (0, 0)
    assert database.counts() == {}


def test_a_replacement_is_made_once_whatever_comes_between(database):
    """Another attempt, and a lost answer."""
    earlier = published(database)
    first, second = again(database, earlier), again(database, earlier)
    first.before_commit = second.publish

    def lost():
        raise psycopg.OperationalError("reset")

    second.after_commit = lost
    first.publish()
    assert database.counts() == {NEW: 2}


def test_rows_of_a_partitioned_table_are_replaced(postgres_server):
    """They are in several tables."""
    partitioned = Database(postgres_server)
    partitioned.sql(
        f"CREATE SCHEMA {partitioned.schema}; "
        f"CREATE TABLE {partitioned.table} (id bigint, name text) PARTITION BY HASH (id)"
    )
    for part in range(2):
        partitioned.sql(
            f"CREATE TABLE {partitioned.schema}.t{part} PARTITION OF {partitioned.table} "
            f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        )
    rows = {"id": list(range(20)), "name": [OLD] * 20}
    again(partitioned, published(partitioned, rows=rows)).publish()
    assert partitioned.counts() == {NEW: 2}


def test_rows_of_a_table_with_a_percent_sign_in_its_name_are_replaced(database):
    """It is not part of a placeholder."""
    database.sql(f'ALTER TABLE {database.table} RENAME TO "t%"')
    name = f"{database.schema}.t%"
    again(database, published(database, name=name), name=name).publish()
    assert database.sql(f'SELECT DISTINCT name FROM {database.schema}."t%"') == [[NEW]]


def test_rows_are_told_after_a_vacuum_that_freezes_and_rewrites(database):
    """A row keeps its transaction id when it is frozen."""
    earlier = published(database)
    database.sql(f"VACUUM (FULL, FREEZE) {database.table}")
    again(database, earlier).publish()
    assert database.counts() == {NEW: 2}


def test_rows_that_a_trigger_puts_elsewhere_are_not_replaced_as_none(database):
    """In a block with EXCEPTION they have the number of a subtransaction: none would be found."""
    schema = database.schema
    database.sql(
        f"CREATE TABLE {schema}.child () INHERITS ({database.table}); CREATE FUNCTION {schema}.route() "
        f"RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN BEGIN INSERT INTO {schema}.child VALUES (NEW.*); "
        "EXCEPTION WHEN undefined_table THEN NULL; END; RETURN NULL; END $$; CREATE TRIGGER route BEFORE "
        f"INSERT ON {database.table} FOR EACH ROW EXECUTE FUNCTION {schema}.route()"
    )
    earlier = published(database)
    with pytest.raises(TableRewritten, match="took none of the rows"):
        again(database, earlier).publish()
    assert database.counts() == {OLD: 2}


@pytest.mark.parametrize(
    "kept",
    [
        "CREATE TRIGGER kept BEFORE DELETE ON {t} FOR EACH ROW EXECUTE FUNCTION {s}.no()",
        "CREATE RULE kept AS ON DELETE TO {t} DO INSTEAD NOTHING",
    ],
    ids=["trigger", "rule"],
)
def test_rows_that_the_table_does_not_give_up_are_not_replaced(database, kept):
    """It marks them as deleted, for example; the error names triggers and rules, too."""
    earlier = published(database)
    database.sql(
        f"CREATE FUNCTION {database.schema}.no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NULL; END $$; " + kept.format(t=database.table, s=database.schema)
    )
    with pytest.raises(TableRewritten, match="kept by a trigger or rule for DELETE"):
        again(database, earlier).publish()
    assert database.counts() == {OLD: 2}


CHANGES = {
    "a row is deleted": ("DELETE FROM {} WHERE id = 100", {OLD: 1}),
    "a row is updated": ("UPDATE {} SET name = 'other' WHERE id = 100", {OLD: 1, "other": 1}),
    "a row is updated with its own value": ("UPDATE {} SET id = id WHERE id = 100", {OLD: 2}),
    "all rows are deleted": ("DELETE FROM {}", {}),
    "the table is rewritten": ("ALTER TABLE {} ALTER id TYPE numeric", {OLD: 2}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_not_replaced(database, change):
    """Refused before any input is read; nothing is changed."""
    statement, left = CHANGES[change]
    earlier = published(database)
    database.sql(statement.format(database.table))
    attempt = again(database, earlier)
    with pytest.raises(TableRewritten, match="of the 2 rows"):
        attempt.sink.refuse_rewritten(attempt.version, [earlier])
    with pytest.raises(TableRewritten, match="Nothing was replaced"):
        attempt.publish()
    assert database.counts() == left


@pytest.mark.parametrize("change", ["a row is deleted", "a row is updated"])
def test_what_changes_between_look_and_commit_is_not_replaced(database, change):
    """The transaction counts the rows that it deletes."""
    statement, left = CHANGES[change]
    earlier = published(database)
    attempt = again(database, earlier)
    attempt.sink.refuse_rewritten(attempt.version, [earlier])
    attempt.before_commit = lambda: database.sql(statement.format(database.table))
    with pytest.raises(TableRewritten, match="Nothing was replaced"):
        attempt.publish()
    assert database.counts() == left


def test_without_the_count_changed_rows_stay_beside_the_new_ones(database, monkeypatch):
    """Counter-test."""
    earlier = published(database)
    database.sql(CHANGES["a row is updated"][0].format(database.table))
    monkeypatch.setattr(postgres_sink, "refuse_rewritten", lambda *_, **__: None)
    again(database, earlier).publish()
    assert database.counts() == {OLD: 1, "other": 1, NEW: 2}


def test_a_number_that_may_have_been_used_again_is_not_believed(database, monkeypatch):
    """Rows have the lower 32 bits: 4 billion transactions later another one has the same."""
    earlier = published(database)
    attempt = again(database, earlier)
    later = earlier.snapshot + (1 << 32)
    monkeypatch.setattr(postgres_catalog, "_NEXT", f"SELECT {later}::bigint")
    with pytest.raises(TableRewritten, match="used again"):
        attempt.publish()
    assert database.counts() == {OLD: 2}


def test_a_number_that_a_database_gave_away_again_is_not_believed(tmp_path):
    """A restored backup lacks a run, and the next run gets its transaction id, with as many rows."""
    with PostgresServer() as server:
        database = Database(server)
        database.create()
        published(database, "run/p/0", token=4)
        backup = tmp_path / "backup"
        server.crash(lambda data: subprocess.run(["cp", "-a", data, backup], check=True))
        lost = published(database)

        def restore(data):
            shutil.rmtree(data)
            backup.rename(data)

        server.crash(restore)
        later = published(database, "run/p/2", token=20)
        assert lost.receipt == later.receipt
        attempt = again(database, lost, token=30)
        with pytest.raises(TableRewritten, match="has set it back"):
            attempt.publish()
        assert database.counts() == {"run/p/0": 2, "run/p/2": 2}
        identity = attempt.version.layout.uuid
        assert "has set it back" in rows_of_run(database.sink(), identity, lost)[1]
        assert rows_of_run(database.sink(), identity, later) == (2, "")


def test_a_database_that_was_set_back_behind_a_run_is_a_mismatch(tmp_path):
    """For runs that append or upsert, also a pipeline's first, before which the table had only its note.

    Later runs, whose transaction ids are higher than the lost one, prove nothing.
    """
    with PostgresServer() as server:
        tables = []
        for sink in ({}, {"mode": "upsert", "key": ["id"]}):
            for has_run in (False, True):
                database = Database(server)
                database.create("id bigint PRIMARY KEY, name text")
                PostgresSink(database.sink(), f"eos.{database.schema}").load()
                kept = Attempt(database, "run/p/0", 4, **sink).publish() if has_run else None
                tables.append((database, sink, kept))
        backup = tmp_path / "backup"
        server.crash(lambda data: subprocess.run(["cp", "-a", data, backup], check=True))
        attempts = [Attempt(database, **sink) for database, sink, _ in tables]
        receipts = [attempt.publish() for attempt in attempts]

        def restore(data):
            shutil.rmtree(data)
            backup.rename(data)

        server.crash(restore)
        tables[0][0].sql(";".join(["SELECT pg_current_xact_id()"] * 20))
        for (database, _, kept), attempt, lost in zip(tables, attempts, receipts, strict=True):
            Attempt(database, "run/p/2", 20, scope="next").publish()
            identity = attempt.version.layout.uuid
            _, lost_because = rows_of_run(database.sink(), identity, EarlierRows(lost, file_label("run/p/1")))
            assert "has set it back" in lost_because
            if kept is not None:
                assert rows_of_run(database.sink(), identity, EarlierRows(kept, file_label("run/p/0"))) == (
                    2,
                    "",
                )


def test_a_replacement_without_rows_is_no_mismatch(database):
    """It has a receipt, and the database knows its transaction, which only deleted rows."""
    earlier = published(database)
    attempt = again(database, earlier)
    receipt = attempt.publisher.publish(attempt.claim, ())
    run = EarlierRows(receipt, file_label(NEW))
    assert rows_of_run(database.sink(), attempt.version.layout.uuid, run) == (0, "")
    assert database.counts() == {}


def test_a_row_that_refers_to_the_earlier_ones_refuses_the_run(database):
    """As any delete; nothing is changed."""
    database.sql(
        f"ALTER TABLE {database.table} ADD PRIMARY KEY (id); "
        f"CREATE TABLE {database.schema}.u (id bigint REFERENCES {database.table})"
    )
    earlier = published(database)
    database.sql(f"INSERT INTO {database.schema}.u VALUES (100)")
    with pytest.raises(Exception, match="u_id_fkey"):
        again(database, earlier).publish()
    assert database.counts() == {OLD: 2}


def test_a_barred_replacement_takes_nothing_out(database):
    """The barred zombie neither inserts nor deletes."""
    earlier = published(database)
    zombie, successor = again(database, earlier), again(database, earlier)
    zombie.before_commit = lambda: successor.publisher.settle(successor.claim)
    with pytest.raises(RunFenced):
        zombie.publish()
    assert database.counts() == {OLD: 2}


def test_a_role_that_may_not_delete_is_refused(database):
    """The error has the missing grant, before any input is read."""
    role = f"r{database.schema}"
    database.sql(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {database.schema} TO {role}; "
        f"GRANT SELECT, INSERT ON {database.table} TO {role}"
    )
    sink = database.sink(reprocess="replace")
    with psycopg.connect(**database.properties) as connection:
        connection.execute(f"SET ROLE {role}")
        with pytest.raises(AuthorizationFailed, match=f"GRANT SELECT, INSERT, DELETE ON {database.table}"):
            find_target(connection, sink)
    database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_rows_that_a_policy_hides_are_not_said_to_be_changed_alone(database):
    """Nor is an insert that a policy refuses blamed on a missing privilege."""
    role = f"r{database.schema}"
    Attempt(database, "run/p/0", 5)  # creates the schema
    database.sql(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {database.schema} TO {role}; "
        f"GRANT USAGE, CREATE ON SCHEMA airflow_eos TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE ON airflow_eos.published TO {role}; "
        f"GRANT SELECT, INSERT, DELETE ON {database.table} TO {role}; "
        f"ALTER TABLE {database.table} ENABLE ROW LEVEL SECURITY; "
        f"CREATE POLICY a ON {database.table} FOR INSERT WITH CHECK (id < 200)"
    )
    limited = {"properties": {**database.properties, "user": role}}
    try:
        earlier = published(database, **limited)
        attempt = again(database, earlier, **limited)
        with pytest.raises(TableRewritten, match=r"of the 2 rows .* 0 are .* or are hidden from this role"):
            attempt.sink.refuse_rewritten(attempt.version, [earlier])
        with pytest.raises(AuthorizationFailed, match=r"row-level security .* policies that a run"):
            Attempt(database, "run/p/2", 20, **limited).publish()
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_rows_that_were_updated_by_key_cannot_be_replaced():
    """The table's configuration itself refuses it."""
    with pytest.raises(ConfigurationError, match="a reprocessing updates the rows by key"):
        PostgresTable("public.t", mode="upsert", key=["id"], reprocess="replace")
    with pytest.raises(ConfigurationError, match="reprocess"):
        PostgresTable("public.t", reprocess="replac")
