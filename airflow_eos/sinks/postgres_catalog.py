"""The driver's queries to a database: the table, the runs that were published in it, and their rows.

``airflow_eos.published`` has a row for each table and consumer group. Its ``id`` is generated with the row,
so that a dropped and recreated table, or row, is not taken for the one that a run has read.

PostgreSQL keeps with each row the id of the transaction that wrote it (``xmin``). A run is one transaction,
whose id is its receipt; any update gives a row another id. Rows have only the lower 32 bits of the id. A
database that a failover or a restored backup has set back reuses the ids of lost transactions: therefore each
run that wrote rows also has a row with its transaction id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_eos.exceptions import AuthorizationFailed, UnknownTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import EarlierRows, PublishedRuns, TableLayout
from airflow_eos.sinks.postgres_columns import TargetColumn
from airflow_eos.sinks.postgres_session import SCHEMA
from airflow_eos.sinks.rewritten import rewritten

_NUMBERS = 1 << 32
_NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
PUBLISHED = "SELECT id::text, version, runs FROM airflow_eos.published WHERE target = %s AND pipeline = %s"
_FIRST = "INSERT INTO airflow_eos.published (target, pipeline) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_NOTE_OF_RUN = """INSERT INTO airflow_eos.published (target, pipeline, version) VALUES (%s, %s, %s)
ON CONFLICT (target, pipeline) DO UPDATE SET version = excluded.version"""
NOT_NOTED = (
    "the database does not know that it published the run: a failover or a restored backup has set it back"
)
_CREATE_CONTROL = """CREATE TABLE IF NOT EXISTS airflow_eos.published (
    target oid NOT NULL,
    pipeline text NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    version bigint NOT NULL DEFAULT 0,
    runs text,
    last_run jsonb,
    PRIMARY KEY (target, pipeline)
)"""
_RELATION = """SELECT c.oid, c.relkind, c.relpersistence, has_schema_privilege(n.oid, 'USAGE'), (
    SELECT bool_and(CASE WHEN needed = 'INSERT' OR 'DELETE' = ANY (privileges)
        THEN has_table_privilege(c.oid, needed) ELSE has_any_column_privilege(c.oid, needed) END)
    FROM unnest(privileges) AS needed)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, (VALUES (%s::text[])) AS needs (privileges)
WHERE n.nspname = %s AND c.relname = %s"""
"""Privileges on columns do not suffice for LOCK TABLE, nor to read ``xmin``."""
_UNFIT_PARTITIONS = """WITH RECURSIVE tree AS (
    SELECT %s::oid AS oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
) SELECT oid::regclass::text, relkind, relpersistence FROM tree JOIN pg_class USING (oid)
WHERE relkind <> 'p' AND (relkind, relpersistence) <> ('r', 'p') ORDER BY 1"""
"""Without ``pg_partition_tree``, which locks: a run must not wait for partitions that it does not write."""
_COLUMNS = """SELECT a.attname, format_type(a.atttypid, a.atttypmod),
    CASE WHEN b.typnamespace = 'pg_catalog'::regnamespace THEN b.typname ELSE '' END,
    b.modifier, a.attnotnull OR b.not_null, a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
    a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
        SELECT t.typname, t.typnamespace, t.typbasetype, t.typtypmod,
            a.atttypmod AS modifier, t.typnotnull AS not_null
        UNION ALL SELECT d.typname, d.typnamespace, d.typbasetype, d.typtypmod,
            base.typtypmod, base.not_null OR d.typnotnull
        FROM base JOIN pg_type d ON d.oid = base.typbasetype
    ) SELECT * FROM base WHERE typbasetype = 0
) b WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE_KEYS = """SELECT i.indimmediate, array_agg(ARRAY[
    a.attname::text, CASE k.coll WHEN 0 THEN '' ELSE ' COLLATE ' || k.coll::regcollation END,
    ' USING OPERATOR(' || o.amopopr::regoper || ')'] ORDER BY k.number)
FROM pg_index i CROSS JOIN
    unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
        WITH ORDINALITY AS k (attnum, class, coll, number)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    JOIN pg_opclass c ON c.oid = k.class JOIN pg_amop o ON o.amopfamily = c.opcfamily
        AND o.amoplefttype = c.opcintype AND o.amoprighttype = c.opcintype AND o.amopstrategy = 1
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid
    AND NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""
"""The join drops INCLUDE columns, which have no operator class; strategy 1 is less-than."""
_RULES = """SELECT rulename FROM pg_rewrite
WHERE ev_class = %s AND (ev_type = '2' OR ev_type = '3' AND ev_enabled IN ('O', 'A'))"""
"""Rules on updates, even disabled ones, and on inserts: with these PostgreSQL refuses ON CONFLICT."""

_OF_STAGED_ROWS = ("airflow_eos_file", "airflow_eos_row", "airflow_eos_position")
"""Columns of a staging table besides those of the target; appended rows have only the first one."""

KeyColumn = tuple[str, str, str]
"""Name, COLLATE and USING: an index may treat values as equal that the type's default order distinguishes."""


@dataclass(frozen=True, slots=True)
class Target:
    """The table's oid, columns and keys: rows are staged for exactly this definition.

    :param orders: for each unique index on the key, its columns with their order in ``ORDER BY`` syntax.
    """

    oid: int
    columns: tuple[TargetColumn, ...]
    orders: tuple[tuple[KeyColumn, ...], ...] = ()

    @property
    def schema_id(self) -> int:
        """A 48-bit hash of the columns: names, types, and which may be left out."""
        return int.from_bytes(hashlib.sha256(repr(self.columns).encode()).digest()[:6], "big")


@dataclass(frozen=True, slots=True)
class PostgresVersion:
    """Implements ``airflow_eos.table_ports.TableVersion``.

    :param pipeline: the name under which the table keeps the published runs of a pipeline.
    :param number: version of the row in ``airflow_eos.published``; each commit of the pipeline increments it.
    """

    target: Target
    pipeline: str
    layout: TableLayout
    published: PublishedRuns
    number: int

    def snapshot_of(self, scope: str, token: int) -> None:
        """Return None: a lost row cannot be read, and its successor has another id."""


def find_target(connection: psycopg.Connection, sink: PostgresTable, *, to_write: bool = True) -> Target:
    """Return the definition of the sink's table.

    :param to_write: whether it must be of a kind that can be written, by this role.
    :raises UnknownTable: the table does not exist, or is of a kind that cannot be written.
    :raises AuthorizationFailed: this role may not write it.
    """
    relation = connection.execute(_RELATION, (list(sink.privileges), *sink.schema_and_table)).fetchone()
    if relation is None:
        raise UnknownTable(
            f"{sink} does not exist: create the table {sink.name!r}, or correct sink=PostgresTable(...); "
            "names are spelt as the catalog has them, small letters unless they were quoted"
        )
    oid, kind, persistence, may_use_schema, may_write = relation
    columns = tuple(TargetColumn(*row) for row in connection.execute(_COLUMNS, (oid,)))
    if not to_write:
        return Target(oid, columns)
    _check_storage(str(sink), sink.name, kind, persistence)
    if kind == "p":
        for partition, *storage in connection.execute(_UNFIT_PARTITIONS, (oid,)):
            _check_storage(f"{sink}: its partition {partition}", partition, *storage)
    if not (may_use_schema and may_write):
        grants = [] if may_use_schema else [f"GRANT USAGE ON SCHEMA {sink.schema_and_table[0]} TO ..."]
        grants += [] if may_write else [f"GRANT {', '.join(sink.privileges)} ON {sink.name} TO ..."]
        raise AuthorizationFailed(f"{sink}: this role may not write it: {'; '.join(grants)}")
    reserved = _OF_STAGED_ROWS if sink.key else _OF_STAGED_ROWS[:1]
    for column in columns:
        if column.name in reserved:
            raise UnknownTable(
                f"{sink} has a column {column.name!r}, a name that staged rows have for themselves: rename it"
            )
    return Target(oid, columns, _orders_of_key(connection, sink, oid, columns) if sink.key else ())


def _check_storage(subject: str, name: str, kind: str, persistence: str) -> None:
    if kind not in ("r", "p"):
        raise UnknownTable(f"{subject} is a view, a foreign table or the like; a table can be written")
    if persistence != "p":
        raise UnknownTable(
            f"{subject} is unlogged, so that a crash of the server would empty it after the ledger has the "
            f"run: ALTER TABLE {name} SET LOGGED"
        )


def _orders_of_key(
    connection: psycopg.Connection, sink: PostgresTable, oid: int, columns: Sequence[TargetColumn]
) -> tuple[tuple[KeyColumn, ...], ...]:
    key, text = set(sink.key), ", ".join(sink.key)
    indexes = [(now, tuple(map(tuple, order))) for now, order in connection.execute(_UNIQUE_KEYS, (oid,))]
    on_key = [(now, order) for now, order in indexes if {name for name, *_ in order} == key]
    if not any(now for now, _ in on_key):
        present = "; ".join(", ".join(name for name, *_ in order) for now, order in indexes if now) or "none"
        raise UnknownTable(
            f"{sink} has no primary key or unique index on exactly {text} (it has: {present}); create it, "
            "not deferrable, partial or WITHOUT OVERLAPS, or correct PostgresTable(key=...)"
        )
    if not all(now for now, _ in on_key):
        raise UnknownTable(
            f"{sink} has a deferrable constraint, too, on {text}, with which PostgreSQL refuses ON CONFLICT: "
            "drop it"
        )
    computed = [column.name for column in columns if column.computed and column.name in key]
    if computed:
        raise UnknownTable(
            f"{sink} generates column {computed[0]!r}, so that no row of a run has it: name other columns in "
            "PostgresTable(key=...)"
        )
    for (rule,) in connection.execute(_RULES, (oid,)):
        raise UnknownTable(
            f"{sink} has the rule {rule!r}, with which PostgreSQL refuses ON CONFLICT: make it a trigger"
        )
    return tuple(sorted({order for _, order in on_key}))


def make_control_table(connection: psycopg.Connection, name: str) -> None:
    """Create the schema and the table of published runs unless they exist.

    :raises AuthorizationFailed: they do not exist, and this role may not create them.
    """
    if connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.published",)).fetchone() != (None,):
        return
    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (SCHEMA,))  # one of several creates it
    try:
        if connection.execute("SELECT to_regnamespace(%s)", (SCHEMA,)).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
        connection.execute(_CREATE_CONTROL)
    except psycopg.errors.InsufficientPrivilege as error:
        raise AuthorizationFailed(
            f"{name}: {SCHEMA}.published, which says what runs have published, does not exist, and this role "
            f"may not create it: {error.diag.message_primary}. As an administrator: CREATE SCHEMA {SCHEMA} "
            "AUTHORIZATION the role of the connection"
        ) from None


def find_version(connection: psycopg.Connection, target: Target, pipeline: str) -> PostgresVersion:
    """Return what a pipeline has published in a table; the first call creates the row.

    :raises AuthorizationFailed: this role does not see the row.
    """
    row = connection.execute(PUBLISHED, (target.oid, pipeline)).fetchone()
    if row is None:
        connection.execute(_FIRST, (target.oid, pipeline))
        row = connection.execute(PUBLISHED, (target.oid, pipeline)).fetchone()
    if row is None:
        raise AuthorizationFailed(
            f"a policy hides rows of {SCHEMA}.published from this role: let it show them all, or disable row "
            "security of that table"
        )
    identity, number, runs = row
    layout = TableLayout(identity, target.schema_id, 0)
    return PostgresVersion(target, pipeline, layout, PublishedRuns.from_json(runs), number)


def note_run(connection: psycopg.Connection, version: PostgresVersion, run: EarlierRows) -> None:
    """Store the id of the transaction that publishes a run."""
    note = (version.target.oid, f"{version.pipeline}/{run.label}", run.snapshot)
    connection.execute(_NOTE_OF_RUN, note)


def is_noted(connection: psycopg.Connection, target: int, pipeline: str, run: EarlierRows) -> bool:
    """Return whether the database has a run's transaction id for the table with this oid."""
    note = connection.execute(PUBLISHED, (target, f"{pipeline}/{run.label}")).fetchone()
    return note is not None and note[1] == run.snapshot


def rows_as_written(
    connection: psycopg.Connection, sink: PostgresTable, snapshot: int, *, delete: bool = False
) -> int:
    """Return the number of rows that are unchanged since the transaction ``snapshot``; may delete them."""
    # No parameters: with them a percent sign in the name would be a placeholder.
    written = sql.SQL("FROM {} WHERE xmin::text::bigint = {}").format(
        sql.Identifier(*sink.schema_and_table), sql.Literal(snapshot % _NUMBERS)
    )
    if delete:
        return connection.execute(sql.SQL("DELETE {}").format(written)).rowcount
    ((rows,),) = connection.execute(sql.SQL("SELECT count(*) {}").format(written))
    return int(rows)


def refuse_rewritten(
    connection: psycopg.Connection,
    sink: PostgresTable,
    version: PostgresVersion,
    replaces: Sequence[EarlierRows],
    *,
    delete: bool = False,
) -> None:
    """Check that all rows of earlier commits are in the table as they were written.

    :param delete: also delete them; the caller rolls back its transaction if this raises.
    :raises TableRewritten: they are not.
    """
    for earlier in replaces:
        if not is_noted(connection, version.target.oid, version.pipeline, earlier):
            raise rewritten(sink, f"{NOT_NOTED} (transaction {earlier.snapshot})", first="look for")
        if not earlier.receipt.rows:
            raise rewritten(
                sink,
                f"the table took none of the rows that transaction {earlier.snapshot} inserted: a trigger or "
                "rule may have put them elsewhere",
            )
        rows = rows_as_written(connection, sink, earlier.snapshot, delete=delete)
        ((following,),) = connection.execute(_NEXT)
        if rows != earlier.receipt.rows or following - earlier.snapshot >= _NUMBERS:
            raise rewritten(
                sink,
                f"of the {earlier.receipt.rows} rows that transaction {earlier.snapshot} wrote, {rows} are "
                f"in the table as they were (the next transaction is {following}): the others were updated "
                "or deleted, or are hidden from this role by a policy, or kept by a trigger or rule for "
                "DELETE, or their numbers were used again",
            )
