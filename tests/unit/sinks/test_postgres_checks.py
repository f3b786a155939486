"""The doctor's checks of a PostgreSQL table."""

from __future__ import annotations

import uuid
from dataclasses import replace

import psycopg
import pytest

from airflow_eos.ledger import keys
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.operations import postgres_checks
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.operations.verification import table_finding
from airflow_eos.sinks.postgres_sink import PostgresSink
from tests.support.run_records import run_record
from tests.unit.sinks.test_postgres_publishing import Attempt

pytestmark = pytest.mark.process

RUN = "run/p/1"


def checks_of(table, **digests):
    """Return the doctor's checks of a table by their subjects."""
    checks = table_checks(table, lambda: digests)
    return {check.name.removeprefix(f"table {table}").strip(): check for check in checks}


def test_a_table_that_runs_can_write_has_no_finding(database, monkeypatch):
    """Staged rows are listed with their run and time, until they are published or dropped."""
    monkeypatch.setattr(postgres_checks, "_SHOWN", 1000)  # other tests leave some
    sink = PostgresSink(database.sink(), f"eos.{uuid.uuid4().hex[:20]}")
    digest = keys.pruned_digest(RUN)
    writer = sink.writer(sink.load(), digest)
    checks = checks_of(database.sink(), **{digest: RUN})
    assert {name: check.status for name, check in checks.items()} == {
        "": "ok",
        "schema airflow_eos": "ok",
        "fencing tokens": "ok",
        "other writers": "ok",
        "staged rows": "warn",
    }
    assert checks["fencing tokens"].found == "readable; 1 consumer group, 0 runs"
    assert f"{writer.staging} (" in checks["staged rows"].found
    assert f"of {RUN}" in checks["staged rows"].found
    sink.close()
    assert writer.staging not in checks_of(database.sink())["staged rows"].found


def test_roles_that_could_make_a_run_count_as_published_are_named(database):
    """By a privilege of their own, or one of PUBLIC."""
    PostgresSink(database.sink(), "eos.p").load()
    role = f"r{uuid.uuid4().hex[:8]}"
    database.sql(f"CREATE ROLE {role}")
    assert checks_of(database.sink())["other writers"].status == "ok"
    try:
        for grantee in (role, "PUBLIC"):
            database.sql(f"GRANT UPDATE ON airflow_eos.published TO {grantee}")
            check = checks_of(database.sink())["other writers"]
            database.sql(f"REVOKE UPDATE ON airflow_eos.published FROM {grantee}")
            assert (check.status, check.found) == ("warn", f"{role} may write airflow_eos.published, too")
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_keeps_runs_from_writing_is_named(database, postgres_server):
    """The table, the privileges, the server; the other checks are skipped then."""
    role = f"r{uuid.uuid4().hex[:8]}"
    (check,) = checks_of(database.sink(name="nowhere.t")).values()
    assert (check.status, "does not exist" in check.found) == ("fail", True)
    postgres_server.query(f"CREATE ROLE {role} LOGIN")
    limited = database.sink(properties={**database.properties, "user": role})
    (check,) = checks_of(limited).values()
    assert (check.status, "GRANT INSERT" in check.found) == ("fail", True)
    database.sql(f"GRANT INSERT ON {database.table} TO {role}")
    (check,) = checks_of(limited).values()
    assert (check.status, "GRANT USAGE ON SCHEMA" in check.found) == ("fail", True)
    database.sql(f"GRANT USAGE ON SCHEMA {database.schema} TO {role}")
    assert checks_of(limited)["schema airflow_eos"].status == "fail"
    database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
    (check,) = checks_of(database.sink(properties={"host": "/nowhere"})).values()
    assert (check.status, "/nowhere" in check.found) == ("fail", True)


def test_policies_that_hide_rows_of_the_role_are_a_warning(database, postgres_server):
    """Only if they apply to the role: not if it bypasses them."""
    role = f"r{uuid.uuid4().hex[:8]}"
    postgres_server.query(f"CREATE ROLE {role} LOGIN")
    database.sql(f"GRANT USAGE ON SCHEMA {database.schema} TO {role}")
    database.sql(f"GRANT INSERT ON {database.table} TO {role}")
    limited = database.sink(properties={**database.properties, "user": role})
    assert "row security" not in checks_of(limited)
    database.sql(f"ALTER TABLE {database.table} ENABLE ROW LEVEL SECURITY")
    check = checks_of(limited)["row security"]
    assert (check.status, "`verify` counts" in check.advice) == ("warn", True)
    assert "row security" not in checks_of(database.sink())
    database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    "name", ["iceberg:c/a.b", "public.t", "postgres:c", "postgres:c/a.b.c", "postgres:/a.b"]
)
def test_only_a_name_of_such_a_table_is_read(name):
    """In the form that run records and ``status`` have."""
    table = PostgresTable("public.t", connection="a/b")
    assert PostgresTable.named(str(table)) == table
    assert PostgresTable.named(name) is None


def record_of(database, attempt):
    """Publish a run; return its record."""
    receipt = attempt.publish()
    details = {"sink": f"postgres:c/{database.table}", "uuid": attempt.claim.layout.uuid, **receipt.to_dict()}
    return run_record(run_key=attempt.claim.key, details={"table": details})


def finding_of(database, record):
    connected = lambda table: replace(table, properties=database.properties)  # noqa: E731
    finding = table_finding(record, connected, lambda: None)
    return finding.outcome, finding.found, finding.detail


def test_rows_of_a_run_are_compared_with_its_record(database):
    """By the transaction that wrote them: later changes by others are reported, and are not a mismatch."""
    record = record_of(database, Attempt(database))
    Attempt(database, "run/p/2", 20).publish()
    assert finding_of(database, record) == ("ok", 2, "")
    database.sql(f"UPDATE {database.table} SET name = 'mine' WHERE id = 100")
    changed = "1 row as written; the others were changed or deleted since"
    assert finding_of(database, record) == ("table", 1, changed)
    assert table_finding(record, None, lambda: None).outcome == "table"


def test_a_table_that_was_renamed_is_not_one_that_was_made_again(database):
    """After a mismatch, its rows would be written again."""
    record = record_of(database, Attempt(database))
    database.sql(f"ALTER TABLE {database.table} RENAME TO u")
    outcome, _, detail = finding_of(database, record)
    assert (outcome, f"is {database.schema}.u now" in detail) == ("table", True)
    database.create()
    statements = f"DROP TABLE {database.schema}.u", f"DROP TABLE {database.table}", ""
    for statement, finding in zip(
        statements, ("u now, and another table has", *["dropped or recreated"] * 2), strict=True
    ):
        outcome, _, detail = finding_of(database, record)
        assert (outcome, finding in detail) == ("mismatch", True)
        database.sql(statement)


def test_a_table_that_is_now_a_partition_has_its_rows(database):
    """The way to partition a table: a mismatch would have its rows written again."""
    record, t, s = record_of(database, Attempt(database)), database.table, database.schema
    database.sql(
        f"ALTER TABLE {t} RENAME TO u; CREATE TABLE {t} (LIKE {s}.u) PARTITION BY LIST (name); "
        f"ALTER TABLE {t} ATTACH PARTITION {s}.u DEFAULT"
    )
    assert finding_of(database, record) == ("ok", 2, "")


def test_a_table_that_is_locked_is_not_compared(database, monkeypatch):
    """Such as by an `ALTER TABLE` that rewrites it: the command does not wait for its end."""
    record = record_of(database, Attempt(database))
    monkeypatch.setattr(postgres_checks, "_LOCK_WAIT", "SET LOCAL lock_timeout = '50ms'")
    with psycopg.connect(**database.properties) as other:
        other.execute(f"LOCK TABLE {database.table} IN ACCESS EXCLUSIVE MODE")
        outcome, _, detail = finding_of(database, record)
    assert (outcome, "lock timeout" in detail) == ("table", True)


def test_rows_that_a_trigger_adds_are_not_taken_for_changed_ones(database):
    """They have the run's transaction id, too."""
    database.sql(
        f"CREATE FUNCTION {database.schema}.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF pg_trigger_depth() = 1 THEN INSERT INTO {database.table} VALUES (0); END IF; RETURN NULL; "
        f"END $$; CREATE TRIGGER f AFTER INSERT ON {database.table} EXECUTE FUNCTION {database.schema}.f()"
    )
    outcome, rows, detail = finding_of(database, record_of(database, Attempt(database)))
    assert (outcome, rows, "wrote more rows: by a trigger" in detail) == ("table", 3, True)
