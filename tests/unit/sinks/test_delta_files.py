"""Data files of a Delta Lake table: written by tasks, read by deltalake and DuckDB."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import sys
import threading
from decimal import Decimal

import deltalake
import duckdb
import pyarrow as pa
import pytest
from deltalake.fs import DeltaStorageHandler

from airflow_eos.exceptions import (
    ConfigurationError,
    EnvironmentMismatch,
    RecordRefused,
    SendError,
    UnknownTable,
)
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.sinks.delta_files import DeltaFiles, partition_texts, statistics
from airflow_eos.sinks.opening import open_table
from tests.support.lakes import DeltaLake

PROPERTY = "eos.0123456789"
COLUMNS = pa.schema(
    [
        ("tiny", pa.int8()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("is_late", pa.bool_()),
        ("ratio", pa.float64()),
    ]
)
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 600007, tzinfo=dt.timezone.utc)
ROWS = [
    {
        "tiny": 1,
        "name": "a b/ü=%",
        "at": MOMENT,
        "local": MOMENT.replace(tzinfo=None),
        "day": MOMENT.date(),
        "price": Decimal("1.50"),
        "raw": b"\x00a",
        "tags": ["x", None],
        "counts": [("k", 1)],
        "place": {"x": 1, "y": None},
        "is_late": True,
        "ratio": 1e300,
    },
    dict.fromkeys(COLUMNS.names),
]
PARTITIONABLE = ["tiny", "name", "at", "local", "day", "price", "is_late"]


def published(lake, rows):
    """Publish rows like a run, with a writer that was pickled."""
    if not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist(rows, COLUMNS)
    sink = open_table(lake.sink(), PROPERTY)
    version = sink.load()
    writer = pickle.loads(pickle.dumps(sink.writer(version, "label")))
    files = writer.write(writer.columns(rows))
    claim = Claim("run/p/1", "cursor", 10, version.layout, lasting=True)
    return Publisher(sink, lambda _: frozenset()).publish(claim, files)


def test_every_type_is_read_as_it_was_written(tmp_path):
    """By deltalake's own scan."""
    lake = DeltaLake(tmp_path, COLUMNS)
    receipt = published(lake, ROWS)
    assert lake.scan().to_pylist() == ROWS
    assert (receipt.files, receipt.rows) == (1, 2)
    (add,) = lake.added()
    assert add["path"].startswith("label-")
    assert (lake.folder / add["path"]).stat().st_size == add["size"]


@pytest.mark.parametrize("column", PARTITIONABLE)
def test_a_partition_is_read_as_it_was_written(tmp_path, column):
    """One file per value and one for null; the column is only in the log, and predicates find it."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=[column])
    published(lake, [*ROWS, ROWS[0]])
    rows = sorted(lake.scan().select(COLUMNS.names).to_pylist(), key=lambda row: row["tiny"] is None)
    assert rows == [ROWS[0], ROWS[0], ROWS[1]]
    adds = lake.added()
    assert sorted(json.loads(add["stats"])["numRecords"] for add in adds) == [1, 2]
    for add in adds:
        names = duckdb.connect().execute(
            "select name from parquet_schema(?)", [str(lake.folder / add["path"])]
        )
        assert (column,) not in names.fetchall()
    assert lake.table.scan(predicate=f"{column} is null").read_all().num_rows == 1


@pytest.mark.parametrize("column", PARTITIONABLE)
def test_partition_values_are_those_of_other_writers(tmp_path, column):
    """Moments differ: they include their zone, as the protocol requires."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=[column])
    deltalake.write_deltalake(str(lake.folder), pa.Table.from_pylist(ROWS[:1], COLUMNS), mode="append")
    (foreign,) = [add["partitionValues"][column] for add in lake.added()]
    (own,) = partition_texts(pa.Table.from_pylist(ROWS[:1], COLUMNS).column(column)).to_pylist()
    assert own == (foreign if column != "at" else "2024-02-29T23:59:59.600007Z")


def test_an_empty_text_in_a_partition_column_is_refused(tmp_path):
    """Delta Lake has no empty text there: it would be read as null."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=["name"])
    with pytest.raises(RecordRefused, match=r"an empty text in 'name', by which delta:.* is partitioned"):
        published(lake, [{**ROWS[0], "name": ""}])
    published(DeltaLake(tmp_path / "other", COLUMNS), [{**ROWS[0], "name": ""}])


@pytest.mark.parametrize("name", ["_list", "row_list", "row", "0", "a.b", 'a "b"=/é'])
def test_a_partition_column_may_have_any_name(tmp_path, name):
    """Also a name that the grouping uses for its own columns."""
    rows = pa.table({name: ["x", "y", None, "x"], "id": range(4)})
    lake = DeltaLake(tmp_path, rows.schema, partition_by=[name])
    published(lake, rows)
    assert sorted(lake.scan().to_pylist(), key=lambda row: row["id"]) == rows.to_pylist()


def test_several_partition_columns_make_a_file_for_each_combination(tmp_path):
    """Also if one of the values is null."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=["name", "tiny"])
    rows = [{**ROWS[1], "name": name, "tiny": tiny} for name in ("a", None) for tiny in (1, None)] * 2
    published(lake, rows)
    values = [(add["partitionValues"]["name"], add["partitionValues"]["tiny"]) for add in lake.added()]
    assert sorted(values, key=str) == sorted([("a", "1"), ("a", None), (None, "1"), (None, None)], key=str)
    assert lake.scan().num_rows == 8


def test_statistics_hold_for_every_row():
    """Bounds of moments and long texts include the values, in a form on which all readers agree."""
    table = pa.table(
        {
            "number": pa.array([3, None, -2], pa.int64()),
            "day": [dt.date(2024, 1, 2), dt.date(2023, 1, 2), None],
            "at": [MOMENT, MOMENT.replace(microsecond=1), None],
            "text": ["b", "ä", "a"],
            "long": ["a" * 33, "b" * 33, "b"],
            "ratio": [1.5, 0.0, -2.5],
            "price": [Decimal("1.50"), Decimal("-12.00"), None],
            "is_late": [True, False, None],
            "raw": [b"a", b"b", None],
            "none": pa.nulls(3, pa.int32()),
            "list": [[1], None, [2]],
        }
    )
    smallest = {"number": -2, "day": "2023-01-02", "at": "2024-02-29T23:59:59.000Z", "text": "a"}
    largest = {"number": 3, "day": "2024-01-02", "at": "2024-02-29T23:59:59.601Z", "text": "ä"}
    nulls = {"number": 1, "day": 1, "at": 1, "text": 0, "long": 0, "ratio": 0, "price": 1, "is_late": 1}
    assert statistics(table) == {
        "numRecords": 3,
        "minValues": {**smallest, "long": "a" * 32, "ratio": -2.5, "price": -12, "is_late": False},
        "maxValues": {
            **largest,
            "long": "b" * 32 + "\U0010ffff",
            "ratio": 1.5,
            "price": 1.5,
            "is_late": True,
        },
        "nullCount": {**nulls, "raw": 1, "none": 3},
    }


@pytest.mark.parametrize(("indexed", "columns"), [("2", 2), ("8", 7), ("-1", 9), (None, 9), ("0", 0)])
def test_so_many_columns_have_statistics_as_the_table_says(tmp_path, indexed, columns):
    """For its first columns; nested ones have none."""
    configuration = {} if indexed is None else {"delta.dataSkippingNumIndexedCols": indexed}
    lake = DeltaLake(tmp_path, COLUMNS, configuration=configuration)
    published(lake, ROWS)
    (add,) = lake.added()
    assert len(json.loads(add["stats"])["nullCount"]) == columns


@pytest.mark.parametrize(
    ("size", "expected"), [(None, 128 << 20), ("1048576", 1 << 20), ("10mb", 10 << 20), ("1 TB", 128 << 20)]
)
def test_a_table_says_how_large_its_files_are(tmp_path, size, expected):
    """In bytes or with a unit; tasks buffer at most 128 MB."""
    lake = DeltaLake(tmp_path, configuration={} if size is None else {"delta.targetFileSize": size})
    sink = open_table(lake.sink(), PROPERTY)
    assert sink.writer(sink.load(), "label").flush_bytes == expected


def test_a_store_is_asked_for_many_data_files_at_the_same_time(tmp_path, monkeypatch):
    """One after the other, 200 took 20 s with a store that needs 50 ms, so that other commits came first."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=["tiny"])
    together = threading.Barrier(8, timeout=10)
    real = DeltaStorageHandler.get_file_info

    def get_file_info(handler, paths):
        together.wait()
        return real(handler, paths)

    monkeypatch.setattr(DeltaStorageHandler, "get_file_info", get_file_info)
    assert published(lake, [{**ROWS[1], "tiny": number} for number in range(8)]).files == 8


def test_where_deltalake_is_missing_is_said(tmp_path, monkeypatch):
    """On the driver before anything is read, on executors by the first task that writes."""
    lake = DeltaLake(tmp_path)
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "label")
    rows = pa.table({"id": [1], "name": ["a"]})
    monkeypatch.setitem(sys.modules, "deltalake.fs", None)
    with pytest.raises(EnvironmentMismatch, match=r"install airflow-eos\[delta\] on the executors"):
        writer.write(rows)
    monkeypatch.delitem(sys.modules, "airflow_eos.sinks.delta")  # as if it was never imported
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-eos\[delta\]'"):
        open_table(lake.sink(), PROPERTY)


@pytest.mark.parametrize("name", ["day", "local", "at"])
def test_a_partition_of_a_far_time_is_refused(tmp_path, name):
    """Once written, the table could not be read any more, neither by a run nor by deltalake."""
    lake = DeltaLake(tmp_path, COLUMNS, partition_by=[name])
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    days = pa.array([2_932_897], pa.int32()).cast(pa.date32())
    far = days if name == "day" else days.cast(pa.timestamp("s")).cast(COLUMNS.field(name).type)
    with pytest.raises(RecordRefused, match=f"outside of the years 1 to 9999 in '{name}'"):
        writer.columns(pa.table({name: far}))


@pytest.mark.parametrize("declared", ["varchar(3)", "char(3)"])
def test_a_text_that_is_longer_than_spark_has_declared_is_refused(tmp_path, declared):
    """Delta Lake's type is string, and the table's writers respect the declared length."""
    name = pa.field("name", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": declared})
    lake = DeltaLake(tmp_path, pa.schema([("id", pa.int64()), name]))
    published(lake, pa.table({"id": [1, 2], "name": ["한한한", None]}))
    with pytest.raises(RecordRefused, match=rf"4 characters in column 'name', .* as {re.escape(declared)}"):
        published(lake, pa.table({"id": [3], "name": ["abcd"]}))


def test_a_far_date_beside_the_partition_is_written_without_bounds(tmp_path):
    """Python cannot represent it: the log has only the number of rows."""
    rows = pa.table(
        {"tiny": pa.array([1], pa.int8()), "day": pa.array([2_932_897], pa.int32()).cast(pa.date32())}
    )
    assert statistics(rows) == {"numRecords": 1}
    lake = DeltaLake(tmp_path, COLUMNS)
    published(lake, rows)
    back = deltalake.DeltaTable(str(lake.folder)).to_pyarrow_table().column("day")
    assert back.cast(pa.int32()).to_pylist() == [2_932_897]


def test_a_table_of_partition_columns_alone_is_refused(tmp_path):
    """Its data files would have no column, and so no row."""
    lake = DeltaLake(tmp_path, pa.schema([("name", pa.string())]), partition_by=["name"])
    with pytest.raises(UnknownTable, match="no column beside those by which it is partitioned"):
        open_table(lake.sink(), PROPERTY).load()


def test_files_that_do_not_hold_each_row_once_are_not_committed(tmp_path, monkeypatch):
    """Whatever splits the rows into partitions."""
    divide = DeltaFiles._parts
    monkeypatch.setattr(
        DeltaFiles, "_parts", lambda *given: [part for part in divide(*given) for _ in range(2)]
    )
    with pytest.raises(SendError, match="data files hold 4 rows of 2; none is committed"):
        published(DeltaLake(tmp_path, COLUMNS), ROWS)


@pytest.mark.parametrize("name", ["name", "tags", "place"])
def test_text_that_is_not_utf8_is_in_no_file(tmp_path, name):
    """Without statistics nothing else checks it, and DuckDB and deltalake refuse the whole file."""
    lake = DeltaLake(tmp_path, COLUMNS, configuration={"delta.dataSkippingNumIndexedCols": "0"})
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    column = {
        "name": text,
        "tags": pa.ListArray.from_arrays([0, 1], text),
        "place": pa.StructArray.from_arrays([pa.array([1]), text], ["x", "y"]),
    }[name]
    with pytest.raises(RecordRefused, match=f"{name!r} that .*UTF8"):
        published(lake, pa.table({name: column}))


TEXTS = [
    "\U00020bb7野家",
    "\U0002000b",
    "\U00010000",
    "\U0001f600",
    "\U00030000x",
    "é",
    'a\\b"c\n',
    "\x00",
    "\x7f",
]


EACH_IS_FOUND = [
    pa.array([1.5, -0.0, float("inf")]),
    pa.array([0.0, -1e-45], pa.float32()),
    pa.array([True, False]),
    pa.array([Decimal("1.50"), Decimal("-99999999.99")]),
    pa.array([Decimal(10) ** 27, Decimal("0.0000000001")], pa.decimal128(38, 10)),
    pa.array([MOMENT, dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.timezone.utc)]),
    pa.array([MOMENT.replace(tzinfo=None), MOMENT.replace(tzinfo=None, year=4)]),
    pa.array(["a" * 40, "\U0010ffff" * 32]),
    pa.array(["a" * 40, "\U0010ffff" * 33]),
    pa.array([b"a", b"\xff"]),
]


@pytest.mark.parametrize("values", EACH_IS_FOUND, ids=lambda values: str(values.type))
def test_each_value_is_found_by_itself(tmp_path, values):
    """In a column with bounds in the log, or without, beside one with bounds; also with a checkpoint."""
    rows = pa.table({"x": values, "id": range(len(values))})
    lake = DeltaLake(tmp_path, rows.schema)
    published(lake, rows)
    for _ in range(2):
        for value in values:
            is_value = [("x", "=", value)]
            assert lake.table.to_pyarrow_table(filters=is_value).num_rows == 1, value
        lake.table.create_checkpoint()


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_each_text_is_found_by_its_value(tmp_path, text):
    """Readers skip files by the bounds in the log, as they decode them."""
    lake = DeltaLake(tmp_path, COLUMNS)
    published(lake, [{"tiny": 1, "name": text}])
    assert lake.table.to_pyarrow_table(filters=[("name", "=", text)]).num_rows == 1
    if "\x00" not in text:
        quoted = text.replace("'", "''")
        assert pa.table(lake.table.scan(predicate=f"name = '{quoted}'").read_all()).num_rows == 1
