"""Data files of an Iceberg table: written by tasks, read by DuckDB."""

from __future__ import annotations

import datetime as dt
import pickle
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    UUIDType,
)

from airflow_eos.exceptions import EnvironmentMismatch, RecordRefused, SendError, UnknownTable
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.sinks.opening import open_table
from tests.support.lakes import IcebergLake

PROPERTY = "eos.0123456789"
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 999_999)  # noqa: DTZ001 - the table's column has no zone


class PartitionedLake(IcebergLake):
    """An Iceberg table with the column ``id`` and others, and a partition spec."""

    def __init__(
        self, folder: Any, schema: Any, spec: PartitionSpec | None = None, **properties: str
    ) -> None:
        self._spec, self._of_table = spec or PartitionSpec(), properties
        super().__init__(folder, schema)

    def create(self) -> None:
        self._catalog.create_table(
            "db.t", schema=self._schema, partition_spec=self._spec, properties=self._of_table
        )


def by(source_id: int, transform: Any, name: str = "part") -> PartitionField:
    return PartitionField(source_id=source_id, field_id=1000, transform=transform, name=name)


def with_x(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "id", LongType()), NestedField(2, "x", kind))


def published(lake: IcebergLake, rows: pa.Table) -> list[dict[str, Any]]:
    """Publish rows as a task writes them; return those that DuckDB finds in the table's files."""
    sink = open_table(lake.sink(), PROPERTY)
    version = sink.load()
    writer = pickle.loads(pickle.dumps(sink.writer(version, "a" * 20)))
    claim = Claim("run/p/1", "cursor", 10, version.layout, lasting=True)
    receipt = Publisher(sink, lambda _: frozenset()).publish(claim, writer.write(writer.columns(rows)))
    files = [task.file.file_path for task in lake.table.scan().plan_files()]
    read = (
        duckdb.sql(f"SELECT * FROM read_parquet({files}, hive_partitioning = false) ORDER BY 1")
        .to_arrow_table()
        .to_pylist()
    )
    assert len(read) == receipt.rows == rows.num_rows
    return read


@pytest.mark.parametrize(
    ("codec", "written"),
    [("ZSTD", "ZSTD"), ("Snappy", "SNAPPY"), ("UNCOMPRESSED", "UNCOMPRESSED"), ("none", "UNCOMPRESSED")],
)
def test_properties_are_understood_in_capital_letters(tmp_path, codec, written):
    """Trino spells them so in tables that it creates."""
    properties = {"write.format.default": "PARQUET", "write.parquet.compression-codec": codec}
    lake = PartitionedLake(tmp_path, pa.schema([("id", pa.int64())]), **properties)
    assert published(lake, pa.table({"id": [1]})) == [{"id": 1}]
    (path,) = [task.file.file_path for task in lake.table.scan().plan_files()]
    metadata = pq.read_metadata(path.removeprefix("file://"))
    assert metadata.row_group(0).column(0).compression == written
    lake.close()


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"write.target-file-size-bytes": "512MB"}, "'512MB'"),
        ({"write.summary.partition-limit": "all"}, "'all'"),
        ({"write.parquet.page-size-bytes": "1 MiB"}, "write.parquet.page-size-bytes to an integer: 1 MiB"),
        (
            {"write.parquet.compression-codec": "snappy", "write.parquet.compression-level": "3"},
            "doesn't support setting a compression level",
        ),
        ({"write.metadata.metrics.column.id": "truncate(all)"}, r"truncate\(all\)"),
    ],
)
def test_a_property_with_which_no_file_can_be_written_is_named_before_anything_is_read(
    tmp_path, properties, reason
):
    """Otherwise each try's tasks would fail after they have read and transformed."""
    lake = PartitionedLake(tmp_path, pa.schema([("id", pa.int64())]), **properties)
    with pytest.raises(UnknownTable, match=f"no data file can be written with .* properties: .*{reason}"):
        open_table(lake.sink(), PROPERTY).load()
    lake.close()


def test_columns_with_one_name_in_data_files_are_refused_before_anything_is_read(tmp_path):
    """pyiceberg replaces characters that Avro's names lack: this is not an unavailable catalog to retry."""
    lake = PartitionedLake(tmp_path, pa.schema([("a b", pa.int64()), ("a_x20b", pa.int64())]))
    with pytest.raises(UnknownTable, match=r"no data file can be written .*multiple fields for name a_x20b"):
        open_table(lake.sink(), PROPERTY).load()
    lake.close()


@pytest.mark.parametrize("codec", ["uncompressed", "GZIP", "snappy"])
def test_the_codec_of_data_files_in_avro_is_not_that_of_manifests(tmp_path, codec):
    """If it were, no commit could be made: pyiceberg does not write manifests with it."""
    properties = {"write.avro.compression-codec": codec}
    lake = PartitionedLake(tmp_path, pa.schema([("id", pa.int64())]), **properties)
    assert published(lake, pa.table({"id": [1]})) == [{"id": 1}]
    lake.close()


def test_null_and_empty_lists_and_maps_of_structs_stay_apart(tmp_path):
    """Also nested in a struct, and in a slice of rows; values that a null hides do not come back."""
    item = pa.struct([("a", pa.int64())])
    kind = pa.struct([("items", pa.list_(item)), ("by_name", pa.map_(pa.string(), item))])
    lake = PartitionedLake(
        tmp_path,
        pa.schema(
            [("id", pa.int64()), ("l", pa.list_(item)), ("m", pa.map_(pa.string(), item)), ("s", kind)]
        ),
    )
    lists = [[{"a": 7}], [{"a": 1}], None, [], [None]]
    maps = [[], [("k", {"a": 2})], None, [], [("k", None)]]
    hidden = pa.ListArray.from_arrays(
        [0, 1, 2, 3, 3, 4], pa.array([{"a": 7}, {"a": 1}, {"a": 666}, None], item)
    )
    rows = pa.table(
        {
            "id": range(5),
            "l": pa.ListArray.from_buffers(
                hidden.type,
                5,
                [pa.py_buffer(bytes([0b11011])), hidden.buffers()[1]],
                children=[hidden.values],
            ),
            "m": pa.array(maps, pa.map_(pa.string(), item)),
            "s": pa.array([{"items": lists[n], "by_name": maps[n]} for n in range(5)], kind),
        }
    ).slice(1)

    read = published(lake, rows)

    assert [row["l"] for row in read] == lists[1:]
    assert [row["m"] for row in read] == maps[1:]
    assert [row["s"] for row in read] == [
        {"items": items, "by_name": by_name} for items, by_name in zip(lists[1:], maps[1:], strict=True)
    ]
    assert "a" in str(lake.table.scan().to_arrow().schema.field("l").type)


def test_a_pyarrow_that_writes_maps_without_ids_is_refused(tmp_path, monkeypatch):
    """Readers find columns by field id: keys and values of a map would be null."""
    lake = PartitionedLake(tmp_path, pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))
    rows = pa.table({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    monkeypatch.setattr(pa, "__version__", "18.1.0")
    with pytest.raises(EnvironmentMismatch, match=r"pyarrow 18\.1\.0 .* install pyarrow 19 or later"):
        published(lake, rows)


@pytest.mark.parametrize(
    ("kind", "transform"),
    [
        (TimestampType(), YearTransform()),
        (TimestampType(), MonthTransform()),
        (TimestampType(), DayTransform()),
        (TimestampType(), HourTransform()),
        (StringType(), BucketTransform(4)),
        (StringType(), TruncateTransform(3)),
        (StringType(), IdentityTransform()),
        (StringType(), VoidTransform()),
        (DateType(), DayTransform()),
        (DecimalType(9, 2), BucketTransform(16)),
        (DecimalType(9, 2), TruncateTransform(50)),
    ],
    ids=str,
)
def test_rows_are_divided_by_each_transform(tmp_path, kind, transform):
    """Each row is once in the files of its own partition, also null; scans that skip files find it."""
    values: dict[IcebergType, list[Any]] = {
        TimestampType(): [MOMENT, MOMENT - 60 * dt.timedelta(days=366), None],
        StringType(): ["abcdef", "abcxyz", "", None],
        DateType(): [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
        # Hashed by their fewest bytes; some writers and readers used more.
        DecimalType(9, 2): [Decimal("-0.01"), Decimal("-1.28"), Decimal("1.28"), Decimal("-327.68"), None],
    }
    given = values[kind]
    arrow = pyiceberg_arrow.schema_to_pyarrow(with_x(kind), include_field_ids=False).field("x").type
    lake = PartitionedLake(tmp_path, with_x(kind), PartitionSpec(by(2, transform)))
    rows = pa.table({"id": range(len(given)), "x": pa.array(given, arrow)})

    assert published(lake, rows) == rows.to_pylist()
    for value in given:
        # Reads only files whose partition may hold the value.
        row_filter = (
            IsNull("x")
            if value is None
            else EqualTo("x", value.isoformat() if isinstance(value, dt.date) else value)
        )
        assert lake.table.scan(row_filter=row_filter).to_arrow().column("x").to_pylist() == [value]


@pytest.mark.parametrize(
    ("source_id", "transform"),
    [(2, TruncateTransform(50)), (2, BucketTransform(4)), (2, IdentityTransform()), (4, BucketTransform(4))],
    ids=str,
)
def test_decimals_are_divided_at_any_address(tmp_path, source_id, transform):
    """16-byte numbers at a multiple of 8, as in Spark's batches: Rust refuses to read them there."""
    kind, values = pa.decimal128(10, 2), [Decimal("1.00"), Decimal("1.75"), Decimal("-7.25")]
    stream = pa.BufferOutputStream()  # allocated at a multiple of 64
    stream.write(bytes(8) + pa.array(values, kind).buffers()[1].to_pybytes())
    decimals = pa.Array.from_buffers(kind, len(values), [None, stream.getvalue().slice(8)])
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "x", DecimalType(10, 2)),
        NestedField(3, "s", StructType(NestedField(4, "x", DecimalType(10, 2)))),
    )
    lake = PartitionedLake(tmp_path, schema, PartitionSpec(by(source_id, transform)))
    rows = pa.table({"id": range(3), "x": decimals, "s": pa.StructArray.from_arrays([decimals], ["x"])})
    assert published(lake, rows) == rows.to_pylist()


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (DoubleType(), [by(2, IdentityTransform())], "'x' is a double"),
        (FloatType(), [by(2, IdentityTransform())], "'x' is a float"),
        (TimeType(), [by(2, BucketTransform(3))], "AttributeError"),
        (UUIDType(), [by(2, IdentityTransform())], "uuid"),
        (
            StringType(),
            [by(2, IdentityTransform()), PartitionField(2, 1001, VoidTransform(), "removed")],
            "redundant partitions",
        ),
    ],
)
def test_a_partition_spec_that_rows_cannot_be_divided_by_is_refused_before_anything_is_read(
    tmp_path, kind, fields, reason
):
    """The error has the reason; a run would fail when it writes its rows, or duplicate some."""
    lake = PartitionedLake(tmp_path, with_x(kind), PartitionSpec(*fields))
    with pytest.raises(UnknownTable, match=f"partition spec cannot be written.*{reason}"):
        open_table(lake.sink(), PROPERTY).load()


def test_a_partition_field_of_a_dropped_column_is_refused(tmp_path):
    """In format version 1 the spec keeps a removed field: this is not an unavailable catalog to retry."""
    spec = PartitionSpec(by(2, IdentityTransform()))
    lake = PartitionedLake(tmp_path, with_x(StringType()), spec, **{"format-version": "1"})
    with lake.table.update_spec() as update:
        update.remove_field("part")
    rows = pa.table({"id": [1], "x": ["a"]})
    assert published(lake, rows) == rows.to_pylist()
    with lake.table.update_schema() as update:
        update.delete_column("x")
    with pytest.raises(UnknownTable, match="'part' is made of a column that was dropped"):
        open_table(lake.sink(), PROPERTY).load()


def test_a_partition_by_a_required_column_may_be_null(tmp_path):
    """Its field was removed from the spec, or a null is around the column: no catalog that is away."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "s", StructType(NestedField(3, "x", StringType(), required=True)), required=False),
    )
    removed = PartitionField(1, 1001, IdentityTransform(), "removed")
    spec = PartitionSpec(by(3, IdentityTransform()), removed)
    lake = PartitionedLake(tmp_path, schema, spec, **{"format-version": "1"})
    with lake.table.update_spec() as update:
        update.remove_field("removed")
    rows = pa.table({"id": [1, 2], "s": [{"x": "a"}, None]})
    assert published(lake, rows) == rows.to_pylist()
    partitions = [tuple(task.file.partition) for task in lake.table.scan().plan_files()]
    assert sorted(partitions, key=str) == [("a", None), (None, None)]


def test_a_text_that_makes_no_path_is_refused_by_the_task(tmp_path):
    """A character may take twelve there; a retry would fail, too."""
    lake = PartitionedLake(tmp_path, with_x(StringType()), PartitionSpec(by(2, IdentityTransform())))
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    with pytest.raises(RecordRefused, match=r"too long a path in iceberg:c/db\.t: .*truncate"):
        writer.write(writer.columns(pa.table({"id": [1], "x": ["é" * 60]})))


@pytest.mark.parametrize(
    ("kind", "transform", "value", "reason"),
    [
        (StringType(), None, "x" * 15 + "\ud7ffz", "surrogates not allowed"),
        (DecimalType(10, 3), TruncateTransform(50), Decimal("-9999999.999"), "precision"),
        (IntegerType(), TruncateTransform(5), -(2**31), "2147483646 is not a multiple of 5"),
        (LongType(), TruncateTransform(10), -(2**63), "is not a multiple of 10"),
    ],
    ids=["bound of a text", "decimal", "int", "long"],
)
def test_a_value_without_partition_or_bound_is_refused_by_the_task(tmp_path, kind, transform, value, reason):
    """A retry would fail, too, and so would a commit; the adjacent smallest values are written."""
    spec = None if transform is None else PartitionSpec(by(2, transform))
    lake = PartitionedLake(tmp_path, with_x(kind), spec)
    arrow = pyiceberg_arrow.schema_to_pyarrow(with_x(kind), include_field_ids=False).field("x").type
    rows = pa.table({"id": [1], "x": pa.array([value], arrow)})
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    with pytest.raises(RecordRefused, match=f"partition or bound.*{reason}"):
        writer.write(writer.columns(rows))
    near = value[:-2] if isinstance(value, str) else value + 50
    assert published(lake, pa.table({"id": [1], "x": pa.array([near], arrow)})) == [{"id": 1, "x": near}]
    assert lake.table.scan(row_filter=EqualTo("x", near)).to_arrow().num_rows == 1


@pytest.mark.parametrize("error", [MemoryError, OSError, ImportError])
def test_what_no_value_causes_is_tried_again(tmp_path, monkeypatch, error):
    """The store, the worker, or what is installed there."""

    def fails(*_: Any) -> Any:
        raise error("gone")

    lake = PartitionedLake(tmp_path, with_x(StringType()), PartitionSpec(by(2, IdentityTransform())))
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    monkeypatch.setattr(pyiceberg_arrow, "_determine_partitions", fails)
    with pytest.raises(SendError, match="gone") as failure:
        writer.write(writer.columns(pa.table({"id": [1], "x": ["a"]})))
    assert type(failure.value) is SendError


def test_files_that_do_not_hold_each_row_once_are_not_committed(tmp_path, monkeypatch):
    """Whatever splits the rows into partitions."""
    divide = pyiceberg_arrow._determine_partitions
    monkeypatch.setattr(
        pyiceberg_arrow,
        "_determine_partitions",
        lambda *given: [part for part in divide(*given) for _ in range(2)],
    )
    lake = PartitionedLake(tmp_path, with_x(StringType()), PartitionSpec(by(2, IdentityTransform())))
    with pytest.raises(SendError, match="data files hold 4 rows of 2; none is committed"):
        published(lake, pa.table({"id": [1, 2], "x": ["a", "b"]}))


def test_bytes_fill_uuids_and_fixed_columns_where_their_length_is_right(tmp_path):
    """A DataFrame has no other type for them."""
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "u", UUIDType()), NestedField(3, "f", FixedType(4))
    )
    lake, value = PartitionedLake(tmp_path, schema), uuid.UUID(int=7)
    rows = pa.table(
        {"id": [1], "u": pa.array([value.bytes], pa.binary()), "f": pa.array([b"abcd"], pa.binary())}
    )
    published(lake, rows)
    (row,) = lake.table.scan().to_arrow().to_pylist()
    assert (row["u"], row["f"]) == (value, b"abcd")
    sink = open_table(lake.sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    for column in ("u", "f"):
        with pytest.raises(RecordRefused, match=f"column {column!r} that .* cannot hold"):
            writer.columns(
                rows.set_column(1 if column == "u" else 2, column, pa.array([b"abc"], pa.binary()))
            )


def test_text_that_is_not_utf8_comes_to_no_partition(tmp_path):
    """Truncating it to a number of characters would end the process."""
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    lake = PartitionedLake(tmp_path, with_x(StringType()), PartitionSpec(by(2, TruncateTransform(2))))
    with pytest.raises(RecordRefused, match=r"'x' that .*UTF8"):
        published(lake, pa.table({"id": [1], "x": text}))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
        pa.array([-719_163], pa.int32()).cast(pa.date32()),
        pa.array([4_102_444_800_000_000_000], pa.int64()).cast(pa.timestamp("us")),
    ],
    ids=["year 10000", "year 0", "milliseconds as seconds"],
)
def test_times_that_no_reader_in_python_has_are_refused_with_their_column(tmp_path, values):
    """Without a partition spec too: pyiceberg computes bounds of every column."""
    kind = DateType() if pa.types.is_date(values.type) else TimestampType()
    sink = open_table(PartitionedLake(tmp_path, with_x(kind)).sink(), PROPERTY)
    writer = sink.writer(sink.load(), "a" * 20)
    with pytest.raises(RecordRefused, match="outside of the years 1 to 9999 in 'x'"):
        writer.columns(pa.table({"id": [1], "x": values}))
