"""Rows that a process may return for a table: names, types, values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_eos.exceptions import ProcessFailed, RecordRefused
from airflow_eos.sinks.columns import has_far_time, table_columns, widens

WANTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.large_string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.large_list(pa.large_string())),
        pa.field("price", pa.decimal128(10, 2)),
    ]
)


def test_what_widens_is_widened_and_what_is_left_out_is_null():
    """The columns have the table's order."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    given = pa.table(
        {
            "at": pa.array([moment], pa.timestamp("ms", "Europe/Berlin")),
            "id": pa.array([7], pa.int16()),
            "tags": pa.array([["a"]], pa.list_(pa.string())),
            "name": pa.array(["x"]).dictionary_encode(),
        }
    )
    assert table_columns(given, WANTED, "db.t").to_pylist() == [
        {"id": 7, "name": "x", "at": moment, "tags": ["a"], "price": None}
    ]
    assert table_columns(given, WANTED, "db.t").schema == WANTED


def test_numbers_in_an_array_that_is_filled_again_are_those_that_were_returned():
    """By the function's next call: rows of many calls make a file."""
    scratch = np.array([7])
    returned = table_columns(pa.table({"id": pa.array(scratch)}), WANTED, "db.t")
    scratch[0] = 8
    assert returned["id"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"id": [1], "nmae": ["x"]}, "did you mean 'name'"),
        ({"name": ["x"]}, "no column 'id'"),
        ({"id": ["1"]}, "column 'id' as string"),
        ({"id": [1.0]}, "column 'id' as double"),
        ({"id": pa.array([1], pa.uint64())}, "column 'id' as uint64"),
        ({"id": [1], "at": pa.array([0], pa.timestamp("us"))}, "column 'at' as timestamp[us]"),
        ({"id": [1], "at": pa.array([0], pa.timestamp("ns", "UTC"))}, "column 'at' as timestamp[ns, tz=UTC]"),
        ({"id": [1], "price": [Decimal("1.234")]}, "column 'price' as decimal128(4, 3)"),
        ({"id": [1], "tags": [[1]]}, "column 'tags' as list"),
    ],
)
def test_what_does_not_fit_is_named(given, named):
    """The error has column, type, and the table's type."""
    with pytest.raises(ProcessFailed) as failure:
        table_columns(pa.table(given), WANTED, "db.t")
    assert named in str(failure.value)


@pytest.mark.parametrize(
    "result",
    [
        pa.table({}),
        pa.record_batch({"id": [1, 2]}).select([]),
        pd.DataFrame({"id": [1, 2]})[[]],
    ],
    ids=["no rows", "rows", "pandas"],
)
def test_a_result_without_columns_is_refused(result):
    """Their number of rows is unknown: they would be lost, or all null."""
    optional = pa.schema([field.with_nullable(True) for field in WANTED])
    with pytest.raises(ProcessFailed, match=r"process returned no columns.* return columns of db\.t"):
        table_columns(result, optional, "db.t")


def test_nan_is_a_missing_value_in_pandas_alone():
    """As in pandas itself; other results keep NaN."""
    wanted = pa.schema([("x", pa.float64())])
    for given, value in (
        (pd.DataFrame({"x": [float("nan")]}), "null"),
        (pa.table({"x": [float("nan")]}), "nan"),
    ):
        (read,) = table_columns(given, wanted, "db.t").column("x")
        assert str(read).lower().replace("none", "null") == value


def test_a_required_value_that_is_missing_is_refused():
    """Also in a nested column."""
    with pytest.raises(RecordRefused, match="'id'"):
        table_columns(pa.table({"id": pa.array([1, None], pa.int64())}), WANTED, "db.t")
    inner = pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False)]))
    wanted = pa.schema([inner, pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)))])
    with pytest.raises(RecordRefused, match=r"'s\.x'"):
        table_columns(
            pa.table({"s": [{"x": 1}, {"x": None}]}).cast(wanted_types(wanted, "s")), wanted, "db.t"
        )
    with pytest.raises(RecordRefused, match=r"'l\.element'"):
        table_columns(pa.table({"l": pa.array([[1, None]], pa.list_(pa.int32()))}), wanted, "db.t")
    assert (
        table_columns(pa.table({"l": pa.array([None], pa.list_(pa.int32()))}), wanted, "db.t").num_rows == 1
    )


def wanted_types(schema, name):
    return pa.schema([pa.field(name, pa.struct([pa.field("x", pa.int32())]))])


@pytest.mark.parametrize("result", [None, pa.table({"id": pa.array([], pa.int64())})])
def test_no_rows_are_no_rows(result):
    """None, or an empty table."""
    assert table_columns(result, WANTED, "db.t") is None


INNER = pa.struct([("y", pa.bool_())])
PLACE = pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string())), ("in", INNER)])
STRICT = pa.struct(
    [
        pa.field("x", pa.int64(), nullable=False),
        pa.field("names", pa.large_list(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("in", pa.struct([pa.field("y", pa.bool_(), nullable=False)]), nullable=False),
    ]
)
"""The same with all fields required."""


def as_spark_writes(places):
    """Return structs whose fields are null where they are null themselves."""
    parts = [as_spark_writes(part) if pa.types.is_struct(part.type) else part for part in places.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(places.type), mask=places.is_null())


@pytest.mark.parametrize("as_written", [lambda places: places, as_spark_writes], ids=["by Arrow", "by Spark"])
def test_a_null_has_none_of_the_fields_that_are_required_in_it(as_written):
    """At any depth, in a slice, and in a column that is left out: Parquet takes no null in such a field."""
    row = {"x": 1, "names": ["a"], "in": {"y": True}}
    places = as_written(pa.array([row, None, row, None], PLACE))
    offsets = [0, 2, 2, 4]
    rows = pa.table(
        {
            "place": places[:3],
            "list": pa.ListArray.from_arrays(offsets, places),
            "map": pa.MapArray.from_arrays(offsets, pa.array(["a", "b", "a", "b"]), places),
        }
    )
    wanted = pa.schema(
        {
            "place": STRICT,
            "list": pa.large_list(STRICT),
            "map": pa.map_(pa.string(), STRICT),
            "left out": STRICT,
        }
    )
    for part in (rows, rows.slice(1), rows.slice(1, 1)):
        written = pa.BufferOutputStream()
        pq.write_table(table_columns(part, wanted, "db.t"), written)
        read = pq.read_table(pa.BufferReader(written.getvalue()))
        assert read.drop_columns(["left out"]).to_pylist() == part.to_pylist()
        assert read["left out"].null_count == len(part)


def test_widening_loses_nothing():
    """By the rules of Iceberg's own promotions, and for other encodings of the same type."""
    assert widens(pa.int32(), pa.int64())
    assert not widens(pa.int64(), pa.int32())
    assert widens(pa.float32(), pa.float64())
    assert not widens(pa.int32(), pa.float64())
    assert widens(pa.uint32(), pa.int64())
    assert not widens(pa.uint32(), pa.int32())
    assert widens(pa.string(), pa.large_string())
    assert not widens(pa.string(), pa.large_binary())
    assert widens(pa.decimal128(5, 2), pa.decimal128(10, 2))
    assert not widens(pa.decimal128(5, 2), pa.decimal128(10, 3))
    assert widens(pa.map_(pa.string(), pa.int32()), pa.map_(pa.large_string(), pa.int64()))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string_view()),
        pa.struct([("a", pa.string_view())]),
        pa.map_(pa.string_view(), pa.binary_view()),
    ],
    ids=str,
)
def test_views_are_read_at_any_depth(kind):
    """Polars returns text in this form."""
    wide = {"list": pa.large_list(pa.large_string()), "stru": pa.struct([("a", pa.large_string())])}
    wanted = pa.schema([("x", wide.get(str(kind)[:4], pa.map_(pa.large_string(), pa.large_binary())))])
    values = {"list": [["v"], None], "stru": [{"a": "v"}, None]}.get(str(kind)[:4], [[("v", b"v")], None])
    given = pa.table({"x": pa.array(values, kind)})
    assert table_columns(given, wanted, "db.t").column("x").to_pylist() == values


def test_times_of_spark_are_taken_where_they_are_whole_microseconds():
    """Spark's TIME arrives in nanoseconds, whatever its precision."""
    wanted = pa.schema([("t", pa.time64("us")), ("l", pa.large_list(pa.time64("us")))])
    whole, rounded = (
        pa.array([n, None], pa.int64()).cast(pa.time64("ns")) for n in (86_399_999_999_000, 1_001)
    )
    given = pa.table({"t": whole, "l": pa.ListArray.from_arrays([0, 1, 2], whole)})
    last = dt.time(23, 59, 59, 999_999)
    assert table_columns(given, wanted, "db.t").to_pylist() == [
        {"t": last, "l": [last]},
        {"t": None, "l": [None]},
    ]
    for name, column in (("t", rounded), ("l", pa.ListArray.from_arrays([0, 1, 2], rounded))):
        with pytest.raises(RecordRefused, match=f"{name!r} that .* cannot hold .*would lose data: 1001"):
            table_columns(pa.table({name: column}), wanted, "db.t")


def not_utf8():
    """Text as Spark's cast of bytes returns it, without validation."""
    values = pa.array([b"ok", None, b"\xff\xfe"], pa.binary())
    return pa.StringArray.from_buffers(3, *values.buffers()[1:], values.buffers()[0])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
@pytest.mark.parametrize("wrapped", ["plain", "list", "struct", "map"])
def test_text_that_is_not_utf8_is_refused_at_any_depth(kind, wrapped):
    """Readers refuse a data file that has it, with all its other rows."""
    text = not_utf8()
    if pa.types.is_dictionary(kind):
        text = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), text)
    else:
        text = text.cast(kind)
    column, wanted = {
        "plain": (text, pa.large_string()),
        "list": (pa.ListArray.from_arrays([0, 2, 3], text), pa.large_list(pa.large_string())),
        "struct": (pa.StructArray.from_arrays([text], ["a"]), pa.struct([("a", pa.large_string())])),
        "map": (
            pa.MapArray.from_arrays([0, 3], pa.array([1, 2, 3]), text),
            pa.map_(pa.int64(), pa.large_string()),
        ),
    }[wrapped]
    with pytest.raises(RecordRefused, match=r"'x' that db\.t cannot hold .*UTF8.*decode"):
        table_columns(pa.table({"x": column}), pa.schema([("x", wanted)]), "db.t")


@pytest.mark.parametrize(
    ("values", "is_far"),
    [
        (pa.array([-719_162, 2_932_896, None], pa.int32()).cast(pa.date32()), False),
        (pa.array([2_932_897], pa.int32()).cast(pa.date32()), True),
        (pa.array([-719_162 * 86_400], pa.int64()).cast(pa.timestamp("s", "UTC")), False),
        (pa.array([2_932_897 * 86_400 * 10**6 - 1], pa.int64()).cast(pa.timestamp("us")), False),
        (pa.array([2_932_897 * 86_400 * 10**6], pa.int64()).cast(pa.timestamp("us")), True),
        (pa.array([-(2**63) + 1], pa.int64()).cast(pa.timestamp("ns")), False),
        (pa.array([None], pa.timestamp("us")), False),
        (pa.array(["10000-01-01"]), False),
    ],
)
@pytest.mark.parametrize("wrapped", ["plain", "list", "struct", "map"])
def test_years_beyond_9999_are_seen_at_any_depth(values, is_far, wrapped):
    """The first and the last moments of the years 1 and 9999 are valid."""
    count = len(values)
    nested = {
        "plain": values,
        "list": pa.ListArray.from_arrays([0, count], values),
        "struct": pa.StructArray.from_arrays([values], ["a"]),
        "map": pa.MapArray.from_arrays([0, count], pa.array(range(count)), values),
    }[wrapped]
    assert has_far_time(pa.chunked_array([nested.slice(0, 0), nested])) is is_far


@pytest.mark.parametrize("kind", ["plain", "list", "struct", "map"])
def test_years_of_rows_that_a_slice_leaves_out_do_not_count(kind):
    """Arrow slices the offsets of lists and maps, and keeps all of their values."""
    time = pa.timestamp("us")
    wrap, of = {
        "plain": (lambda value: value, time),
        "list": (lambda value: [value], pa.list_(time)),
        "struct": (lambda value: {"a": value}, pa.struct([("a", time)])),
        "map": (lambda value: [("a", value)], pa.map_(pa.string(), time)),
    }[kind]
    rows = pa.array([wrap(2_932_897 * 86_400 * 10**6), wrap(0), None], of)
    assert has_far_time(rows)
    assert not has_far_time(rows.slice(1))
