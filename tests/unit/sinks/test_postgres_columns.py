"""Values of every type reach PostgreSQL unchanged, and values that do not fit are refused."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_eos.exceptions import EnvironmentMismatch, ProcessFailed, RecordRefused, SendError
from airflow_eos.model.table import PublishedRun, PublishedRuns, TableCommit, TableReceipt
from airflow_eos.sinks.postgres_sink import PostgresSink

pytestmark = pytest.mark.process

UTC = dt.timezone.utc
MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)  # noqa: DTZ001 - a column without time zone
VALUES = [
    ("boolean", pa.bool_(), [True, False]),
    ("smallint", pa.int16(), [-(2**15), 2**15 - 1]),
    ("integer", pa.int32(), [-(2**31), 2**31 - 1]),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    ("bigint", pa.uint32(), [0, 2**32 - 1]),
    ("real", pa.float32(), [0.1, float("inf"), float("nan"), -1e38]),
    ("double precision", pa.float64(), [0.1, 1e-300, 5e-324, float("-inf"), float("nan")]),
    ("numeric(12,2)", pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.01")]),
    ("numeric(3,5)", pa.decimal128(5, 5), [Decimal("0.00123")]),
    ("numeric(3,-2)", pa.decimal128(3, -2), [Decimal(12300)]),
    ("numeric(60,30)", pa.decimal256(60, 30), [Decimal("1" * 30 + "." + "2" * 30)]),
    ("numeric", pa.decimal128(38, 12), [Decimal("0.000000000001"), Decimal("-99999999999.5")]),
    ("numeric", pa.int64(), [2**62]),
    ("text", pa.string(), ["", " ", "\\N", "\\.", 'say "no",\n\r\t', "日本語 🎉", "null", "\\x41"]),
    ("text", pa.large_string(), ["a"]),
    ("varchar(3)", pa.string(), ["日本語", ""]),
    ("char(3)", pa.string(), ["abc"]),
    ("bytea", pa.binary(), [b"", b"\x00\xff\\", bytes(range(256))]),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999)]),
    ("timestamp", pa.timestamp("us"), [MOMENT, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]),  # noqa: DTZ001
    ("timestamp", pa.timestamp("ms"), [dt.datetime(1969, 12, 31)]),  # noqa: DTZ001
    ("timestamptz", pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)]),
    ("timestamptz", pa.timestamp("us", "Asia/Seoul"), [MOMENT.replace(tzinfo=UTC)]),
    ("uuid", pa.string(), ["00000000-0000-0000-0000-00000000000a"]),
    ("jsonb", pa.string(), ['{"a": [1, null]}']),
    ("timestamp(0)", pa.timestamp("us"), [MOMENT.replace(microsecond=0)]),
    ("timestamptz(4)", pa.timestamp("us", "UTC"), [MOMENT.replace(microsecond=123400, tzinfo=UTC)]),
    ("time(6)", pa.time64("us"), [dt.time(23, 59, 59, 999999)]),
    ("{schema}.price", pa.decimal128(5, 2), [Decimal("-123.45")]),
    ("integer[]", pa.string(), ["{1,2,NULL}"]),
    ("inet", pa.string(), ["10.0.0.1/8"]),
    ("interval", pa.string(), ["3 days"]),
]

DOMAINS = (
    "CREATE DOMAIN {schema}.amount AS numeric(5,2); CREATE DOMAIN {schema}.price AS {schema}.amount; "
    "CREATE DOMAIN {schema}.second AS timestamp(0); CREATE DOMAIN {schema}.minute AS {schema}.second; "
    "CREATE DOMAIN {schema}.given AS text NOT NULL; CREATE DOMAIN {schema}.word AS {schema}.given"
)


def publication(files):
    """Return what publishes the staged rows of a run."""
    run = PublishedRun("k", 1, TableReceipt(0, 0, 0), lasting=True)
    return TableCommit("s", PublishedRuns({"s": run}), tuple(files))


def staged_and_published(database, rows, **sink):
    """Write rows with a writer, publish them with the sink's statement; return the writer."""
    opened = PostgresSink(database.sink(**sink), "eos.columns")
    version = opened.load()
    writer = opened.writer(version, "a" * 20)
    files = writer.write(writer.columns(rows))
    opened.commit(version, publication(files))
    return writer


@pytest.mark.parametrize(("declared", "kind", "values"), VALUES, ids=lambda value: str(value)[:24])
def test_values_are_read_back_as_they_were(database, declared, kind, values):
    """One of them is null; PostgreSQL itself compares each with a literal of the value."""
    declared = declared.format(schema=database.schema)
    database.sql(f"DROP TABLE {database.table}; {DOMAINS.format(schema=database.schema)}")
    database.create(f"n int, v {declared}")
    column = pa.array([*values, None], kind)
    staged_and_published(database, pa.table({"n": pa.array(range(len(column)), pa.int32()), "v": column}))
    rows = database.sql(f"SELECT n, v IS NULL FROM {database.table} ORDER BY n")
    assert [null == "t" for _, null in rows] == [False] * len(values) + [True]
    for n, value in enumerate(column.to_pylist()[:-1]):
        literal = f"decode('{value.hex()}', 'hex')" if isinstance(value, bytes) else quoted(value)
        same = f"SELECT v = {literal}::{declared} FROM {database.table} WHERE n = {n}"
        assert database.sql(same) == [["t"]], (declared, value)


@pytest.mark.parametrize(
    ("declared", "kind"), dict.fromkeys((declared, kind) for declared, kind, _ in VALUES), ids=str
)
def test_nulls_alone_are_taken_by_every_column(database, declared, kind):
    """As in a batch of a sparsely filled column."""
    declared = declared.format(schema=database.schema)
    database.sql(f"DROP TABLE {database.table}; {DOMAINS.format(schema=database.schema)}")
    database.create(f"v {declared}")
    staged_and_published(database, pa.table({"v": pa.nulls(2, kind)}))
    assert database.sql(f"SELECT count(*) FROM {database.table} WHERE v IS NULL") == [["2"]]


def quoted(value):
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize(
    ("declared", "kind"),
    [("date", pa.date32()), ("timestamp", pa.timestamp("us")), ("timestamptz", pa.timestamp("us", "UTC"))],
)
def test_a_time_of_a_far_year_is_that_time_or_refused(database, declared, kind):
    """Never the time of another year."""
    database.sql(f"DROP TABLE {database.table}")
    database.create(f"v {declared}")
    opened = PostgresSink(database.sink(), "eos.columns")
    writer = opened.writer(opened.load(), "a" * 20)
    taken = {}
    for year in (-1, 1, 1969, 9999, 32767, 32768, 65536, 65537, 67000, 98304, 290000):
        leaps = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
        seconds = ((year - 1) * 365 + leaps - 719_162) * 86_400
        value = pa.array([seconds * 10**6]).cast(pa.timestamp("us")).cast(kind)
        try:
            writer.write(writer.columns(pa.table({"v": value})))
            taken[year] = [str(seconds)]
        except RecordRefused as refused:
            assert "column 'v' outside the years 1 to 32767" in refused.message  # noqa: PT017
    staged = f"SELECT extract(epoch FROM v)::bigint FROM airflow_eos.{writer.staging} ORDER BY v"
    assert database.sql(staged) == list(taken.values())
    assert list(taken) == [1, 1969, 9999, 32767]
    opened.close()


def test_a_single_column_of_nulls_is_rows(database):
    """An empty line of CSV is a row."""
    database.sql(f"DROP TABLE {database.table}")
    database.create("v text")
    staged_and_published(database, pa.table({"v": pa.array([None, "", None], pa.string())}))
    assert database.sql(f"SELECT count(*), count(v) FROM {database.table}") == [["3", "1"]]


def test_what_is_left_out_takes_its_default(database):
    """Defaults, sequences, identities and generated columns are the table's affair; batches may differ."""
    database.sql(
        f"DROP TABLE {database.table}; CREATE DOMAIN {database.schema}.positive AS int CHECK (VALUE > 0)"
    )
    database.create(
        "id int GENERATED BY DEFAULT AS IDENTITY, s serial, always int GENERATED ALWAYS AS IDENTITY, "
        "v text NOT NULL, d text NOT NULL DEFAULT 'd', up text GENERATED ALWAYS AS (upper(v)) STORED, "
        f'n int, "Odd "" name" {database.schema}.positive'
    )
    opened = PostgresSink(database.sink(), "eos.columns")
    version = opened.load()
    writer = opened.writer(version, "a" * 20)
    batches = [
        pa.table({"v": ["a", "b"]}),
        pa.table({"d": ["x"], "v": ["c"], 'Odd " name': pa.array([5], pa.int32())}),
    ]
    files = [file for batch in batches for file in writer.write(writer.columns(batch))]
    receipt = opened.commit(version, publication(files))
    assert (receipt.rows, receipt.files) == (3, 2)
    assert database.sql(f"SELECT * FROM {database.table} ORDER BY v") == [
        ["1", "1", "1", "a", "d", "A", "", ""],
        ["2", "2", "2", "b", "d", "B", "", ""],
        ["3", "3", "3", "c", "x", "C", "", "5"],
    ]


@pytest.mark.parametrize("upsert", [{}, {"mode": "upsert", "key": ["a%%b"]}], ids=["append", "upsert"])
def test_names_of_columns_are_taken_as_they_are_spelt(database, upsert):
    """A percent sign is not part of a placeholder, and a doubled one is another name."""
    database.sql(f"DROP TABLE {database.table}")
    database.create('"a%%b" text PRIMARY KEY, "a%b" text, "growth %" text, "%s" text, "{0}" text')
    rows = {"a%%b": ["two"], "growth %": ["g"], "%s": ["s"], "{0}": ["0"]}
    staged_and_published(database, pa.table(rows), **upsert)
    assert database.sql(f"SELECT * FROM {database.table}") == [["two", "", "g", "s", "0"]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"value": ["a"]}, "column 'value', which .* does not have; its columns are v, n, u"),
        ({"n": pa.array([1], pa.int32())}, "no column 'v'"),
        ({"v": ["a"], "n": [1]}, "'n' as int64; .* has int32"),
        ({"v": ["a"], "n": [1.5]}, "'n' as double; .* has int32"),
        ({"v": ["a"], "up": ["A"]}, "'up', which .* generates"),
        ({"v": ["a"], "u": [b"\0" * 16]}, "'u' as binary"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_read(database, rows, message):
    """Of a DataFrame, by its schema."""
    database.sql(f"DROP TABLE {database.table}")
    database.create("v text NOT NULL, n int, u uuid, up text GENERATED ALWAYS AS (upper(v)) STORED")
    opened = PostgresSink(database.sink(), "eos.columns")
    writer = opened.writer(opened.load(), "a" * 20)
    with pytest.raises(ProcessFailed, match=message):
        writer.check(pa.table(rows).schema)
    with pytest.raises(ProcessFailed, match=message):
        writer.columns(pa.table(rows))
    opened.close()


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        ("text NOT NULL", None, "without a value in 'v'"),
        ("text", "a\0b", "NUL character in column 'v'"),
        ("varchar(3)", "four", r"4 characters in column 'v', which .* character varying\(3\)"),
        ("uuid", "not one", "invalid input syntax for type uuid.*line 1, column v"),
        ("json", "{", "invalid input syntax for type json"),
        ("date", "yesterdayy", "'v' as string"),
        ("smallint", 70000, "'v' as int64"),
        ("{schema}.mood", "glad", "invalid input value for enum"),
        ("{schema}.positive", -1, "violates check constraint"),
        ("timestamp(0)", MOMENT, r"'v' has more digits of a second than .* as timestamp\(0\)"),
        ("timestamp(5)", dt.datetime(1969, 12, 31, 23, 59, 59, 999999), "more digits"),  # noqa: DTZ001
        ("timestamptz(3)", MOMENT.replace(tzinfo=UTC), "more digits"),
        ("time(0)", dt.time(23, 59, 59, 999999), "more digits"),
        ("{schema}.minute", MOMENT, r"more digits of a second than .*\.minute"),
        ("{schema}.word", None, "without a value in 'v'"),
        ("{schema}.price", "1.239", r"'v' as string; .* has decimal128\(5, 2\)"),
    ],
)
def test_a_value_that_a_column_cannot_hold_is_a_refused_record(database, declared, value, message):
    """By our check, or by the COPY that stages it: the search for the record repeats both."""
    database.sql(
        f"DROP TABLE {database.table}; CREATE TYPE {database.schema}.mood AS ENUM ('ok'); "
        f"CREATE DOMAIN {database.schema}.positive AS bigint CHECK (VALUE > 0); "
        + DOMAINS.format(schema=database.schema)
    )
    database.create(f"v {declared.format(schema=database.schema)}")
    opened = PostgresSink(database.sink(), "eos.columns")
    writer = opened.writer(opened.load(), "a" * 20)
    with pytest.raises((RecordRefused, ProcessFailed), match=message):
        writer.write(
            writer.columns(pa.table({"v": pa.array([value], None if value is not None else pa.string())}))
        )
    opened.close()


def test_a_staging_table_that_was_dropped_fails_the_task(database):
    """A newer attempt at the run has dropped it: late writers are of no use."""
    opened = PostgresSink(database.sink(), "eos.columns")
    writer = opened.writer(opened.load(), "a" * 20)
    opened.close()
    with pytest.raises(SendError, match="was dropped, by a newer attempt"):
        writer.write(writer.columns(pa.table({"id": [1]})))


def test_an_executor_without_psycopg_is_told_what_to_install(database, monkeypatch):
    """Like the preflight's message about missing packages."""
    import sys

    opened = PostgresSink(database.sink(), "eos.columns")
    writer = opened.writer(opened.load(), "a" * 20)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(EnvironmentMismatch, match=r"airflow-eos\[postgres\] on the executors"):
        writer.write(writer.columns(pa.table({"id": [1]})))
    monkeypatch.undo()
    opened.close()


def test_the_columns_change_the_layout(database):
    """Rows are staged for its types, nulls and defaults; its other readers do not matter."""
    first, second = (PostgresSink(database.sink(), f"eos.{name}").load() for name in "ab")
    assert first.layout.schema_id == second.layout.schema_id < 2**53
    assert first.layout.uuid != second.layout.uuid
    assert json.loads(json.dumps(first.layout.schema_id)) == first.layout.schema_id
    database.sql(f"ALTER TABLE {database.table} ALTER name SET DEFAULT 'x'")
    assert PostgresSink(database.sink(), "eos.a").load().layout.schema_id != first.layout.schema_id
