"""Checks a PostgreSQL table that runs write; writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from airflow_eos.exceptions import EosError, OutcomeUnknown, UnknownTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import EarlierRows, PublishedRuns
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.operations.table_inspection import RunKeys, fencing_tokens, run_of_label
from airflow_eos.sinks.postgres_catalog import NOT_NOTED, find_target, is_noted, rows_as_written
from airflow_eos.sinks.postgres_session import SCHEMA, reason, refusal, refuse_read_only, transaction
from airflow_eos.wording import moment_text, some_of

_RIGHTS = """SELECT coalesce(
        (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %(schema)s),
        has_database_privilege(current_database(), 'CREATE')
    ), (
        SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
            AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = 'published'
    )"""
_STAGED = """SELECT split_part(relname, '_', 3), split_part(relname, '_', 4), relname,
    pg_total_relation_size(oid)
FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relname ~ %s ORDER BY 2"""
_PLACE = """SELECT p.target, p.pipeline, p.runs, coalesce(n.nspname || '.' || c.relname, ''), EXISTS (
    SELECT FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace
    WHERE s.nspname = %s AND o.relname = %s)
FROM airflow_eos.published p
    LEFT JOIN pg_class c ON c.oid = p.target AND c.relkind IN ('r', 'p')
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.id::text = %s"""
"""The table's current name, empty if it was dropped, and whether any table has its old name."""
_GROUPS = "SELECT runs FROM airflow_eos.published WHERE target = %s AND position('/' IN pipeline) = 0"
_OTHER_WRITERS = """SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname <> current_user
    AND NOT starts_with(rolname, 'pg_') AND has_table_privilege(oid, to_regclass(%s), 'UPDATE') ORDER BY 1"""
_LOCK_WAIT = "SET LOCAL lock_timeout = '60s'"
_NAME = "^rows_[0-9a-f]+_[0-9a-f]+_[0-9a-f]+_"
_SHOWN = 10


def postgres_checks(table: PostgresTable, run_keys: RunKeys) -> Iterator[Check]:
    """Check that runs can write a table, and list rows that attempts have staged but not published."""
    name = f"table {table}"
    try:
        with transaction(table) as connection:
            connection.read_only = True
            refuse_read_only(connection, table)
            target = find_target(connection, table)
            version = connection.info.server_version
            yield Check(name, "ok", f"there, PostgreSQL {version // 10_000}; this role may insert into it")
            yield from _policies(name, connection, target.oid)
            ((may_create, may_note),) = connection.execute(_RIGHTS, {"schema": SCHEMA})
            yield _schema(name, may=may_create and may_note is not False)
            if may_note:
                notes = connection.execute(_GROUPS, (target.oid,)).fetchall()
                yield fencing_tokens(name, (text for (text,) in notes))
                yield _other_writers(name, connection)
            yield _staged(name, connection, run_keys)
    except EosError as error:
        yield Check(name, "fail", error_line(error))
    except psycopg.Error as error:
        refused = refusal(error, table)
        yield Check(
            name,
            "fail",
            reason(error, table) if refused is None else error_line(refused),
            "check the connection, and that the database can be reached",
        )


def rows_of_run(table: PostgresTable, identity: str, run: EarlierRows) -> tuple[int, str]:
    """Return the number of unchanged rows of a run, or 0 and why the database has lost the run's commit.

    :raises UnknownTable: the table was renamed, and no other one has its name.
    :raises OutcomeUnknown: the server is a standby without the commit.
    :raises psycopg.Error: the server does not answer, or this role may not read the table.
    """
    with transaction(table) as connection:
        connection.read_only = True
        connection.execute(_LOCK_WAIT)
        rows, loss = _rows_or_loss(connection, table, identity, run)
        if loss and connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise OutcomeUnknown(f"{table}: the server is a standby, which may lag behind: name the primary")
    return rows, loss


def _rows_or_loss(
    connection: psycopg.Connection, table: PostgresTable, identity: str, run: EarlierRows
) -> tuple[int, str]:
    place = connection.execute(_PLACE, (*table.schema_and_table, identity)).fetchone()
    if place is None or not place[3]:
        return 0, (
            f"the table with the id {identity} is gone: it was dropped or recreated, as from a dump, or the "
            "connection leads to another database"
        )
    target, pipeline, _, name, has_successor = place
    renamed = f"{table}, which the run wrote to, is {name} now"
    if name != table.name and not has_successor:
        raise UnknownTable(renamed)
    if not is_noted(connection, target, pipeline, run):
        return 0, NOT_NOTED
    rows = rows_as_written(connection, table, run.snapshot)
    # A table that is now a partition of the one with its name has the rows of its runs.
    if name != table.name and rows != run.receipt.rows:
        return 0, f"{renamed}, and another table has its name"
    return rows, ""


def place_now(table: PostgresTable, identity: str) -> tuple[str, PublishedRuns, bool]:
    """Return a table's current name, empty if dropped, its runs, and whether any table has its old name.

    The row of published runs outlives the table. A database without that row is another one, or has lost it.

    :raises OutcomeUnknown: the database does not have the row, or does not answer.
    """
    try:
        with transaction(table) as connection:
            connection.read_only = True
            row = connection.execute(_PLACE, (*table.schema_and_table, identity)).fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    except psycopg.Error as error:
        raise OutcomeUnknown(
            f"{table}: the database did not say whether the table exists: {reason(error, table)}"
        ) from None
    if row is None:
        raise OutcomeUnknown(
            f"{table}: {SCHEMA}.published has no row of the table that the run was about to publish in: the "
            "connection leads to another database, or the row was deleted"
        )
    *_, runs, name, has_successor = row
    return name, PublishedRuns.from_json(runs), has_successor


def _policies(name: str, connection: psycopg.Connection, oid: int) -> Iterator[Check]:
    ((applied,),) = connection.execute("SELECT row_security_active(%s::oid)", (oid,))
    if applied:
        yield Check(
            f"{name} row security",
            "warn",
            "policies decide which rows this role sees and writes",
            "`verify` counts, and a reprocessing replaces, only rows that it sees: let the policies show it "
            "all that it inserts, or give the role BYPASSRLS",
        )


def _schema(name: str, *, may: bool) -> Check:
    subject = f"{name} schema {SCHEMA}"
    if may:
        return Check(subject, "ok", "this role may create and write what runs need in it")
    advice = (
        f"CREATE SCHEMA {SCHEMA} AUTHORIZATION the role of the connection; where it exists, GRANT USAGE, "
        f"CREATE ON SCHEMA {SCHEMA} and GRANT SELECT, INSERT, UPDATE ON {SCHEMA}.published"
    )
    return Check(subject, "fail", "this role may not create tables in it, or not write its table", advice)


def _other_writers(name: str, connection: psycopg.Connection) -> Check:
    subject = f"{name} other writers"
    roles = [role for (role,) in connection.execute(_OTHER_WRITERS, (f"{SCHEMA}.published",))]
    if not roles:
        return Check(subject, "ok", f"no other role may write {SCHEMA}.published, but superusers")
    return Check(
        subject,
        "warn",
        f"{some_of(roles, _SHOWN, ', ')} may write {SCHEMA}.published, too",
        "a role with that right can make a run count as published: leave it to roles that load",
    )


def _staged(name: str, connection: psycopg.Connection, run_keys: RunKeys) -> Check:
    subject = f"{name} staged rows"
    tables = connection.execute(_STAGED, (SCHEMA, _NAME)).fetchall()
    if not tables:
        return Check(subject, "ok", "none are left in this database")
    labels = run_keys()
    shown = [
        f"{SCHEMA}.{table} ({size:,} bytes, since {moment_text(1000 * int(since, 16))}) of "
        f"{run_of_label(label, labels)}"
        for label, since, table, size in tables
    ]
    advice = (
        "attempts that died left them, or runs at work have not published them yet; the next attempt at the "
        "same run drops them, any run of the pipeline after a week, and DROP TABLE is safe at any time"
    )
    return Check(subject, "warn", some_of(shown, _SHOWN), advice)
