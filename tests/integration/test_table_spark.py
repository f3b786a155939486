"""Tables written by Spark's tasks: DataFrame and Arrow processes, read again by DuckDB."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos import arrow_process
from airflow_eos.engine import read_process_write
from airflow_eos.exceptions import OffsetsOutOfRange, ProcessFailed, RecordRefused
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.ranges import OffsetRange
from airflow_eos_testing import read_topic
from tests.support.table_processes import arrow_columns, frame_process, records, spec_of
from tests.support.tables import new_catalog, rows_of, values_of

COLUMNS = pa.schema(
    [
        pa.field("value", pa.string(), nullable=False),
        pa.field("partition", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def table(tmp_path):
    properties = new_catalog(tmp_path)
    catalog = load_catalog("c", **properties)
    catalog.create_table("db.t", schema=COLUMNS)
    yield catalog, IcebergTable("db.t", catalog="c", properties=properties)
    catalog.close()


@pytest.mark.parametrize("process", [frame_process, arrow_columns], ids=["frame", "arrow"])
def test_tasks_write_what_the_process_returns(broker, spark, table, process):
    """Columns have the table's order and types, each record is written once; the next run continues."""
    catalog, sink = table
    source = broker.topic("src", 2)
    broker.produce(source, records(500))
    spec = spec_of(broker, sink, source)
    record = read_process_write(spark, spec, process)
    broker.produce(source, records(10))
    again = read_process_write(spark, replace(spec, run_id="next"), process)

    expected = sorted([f"v{i}" for i in range(500)] + [f"v{i}" for i in range(10)])
    assert values_of(catalog.load_table("db.t")) == expected
    assert (record.records_read, record.records_written, again.records_written) == (500, 500, 10)
    assert record.details["table"]["rows"] == 500
    rows = catalog.load_table("db.t").scan().to_arrow()
    assert set(rows["partition"].to_pylist()) == {0, 1}
    assert rows["at"].null_count == 0


def odd_names(df):
    """Return columns whose names Spark takes for paths, or for one another."""
    value = "cast(value as string)"
    return df.selectExpr(f"{value} value", f"{value} `a.b`", "struct(offset x) a", "1 A", "2 `c``d`")


def test_a_frame_has_the_names_of_the_table(broker, spark, tmp_path):
    """With dots and backticks, and names that differ by case only."""
    properties = new_catalog(tmp_path)
    columns = {"value": pa.string(), "a.b": pa.string(), "a": pa.struct([("x", pa.int64())])}
    with closing(load_catalog("c", **properties)) as catalog:
        schema = pa.schema({**columns, "A": pa.int32(), "c`d": pa.int32()})
        catalog.create_table("db.t", schema=schema)
        source = broker.topic("src", 2)
        broker.produce(source, records(20))
        sink = IcebergTable("db.t", catalog="c", properties=properties)
        read_process_write(spark, spec_of(broker, sink, source), odd_names)
        rows = catalog.load_table("db.t").scan().to_arrow().to_pylist()
    assert sorted(row["value"] for row in rows) == sorted(f"v{i}" for i in range(20))
    assert {row["a.b"] == row["value"] for row in rows} == {True}
    assert {(row["a"]["x"] < 10, row["A"], row["c`d"]) for row in rows} == {(True, 1, 2)}


def places(df):
    """Return a null for some records, in whose fields Spark writes nulls, too."""
    return df.selectExpr("cast(value as string) value", "if(offset = 1, null, struct(offset x)) place")


def test_a_null_has_none_of_the_fields_that_are_required_in_it(broker, spark, tmp_path):
    """The table requires a field of values that it does not require."""
    properties = new_catalog(tmp_path)
    with closing(load_catalog("c", **properties)) as catalog:
        place = pa.struct([pa.field("x", pa.int64(), nullable=False)])
        catalog.create_table("db.t", schema=pa.schema({"value": pa.string(), "place": place, "other": place}))
        source = broker.topic("src", 1)
        broker.produce(source, [{"value": b"%d" % i} for i in range(3)])
        sink = IcebergTable("db.t", catalog="c", properties=properties)
        read_process_write(spark, spec_of(broker, sink, source), places)
        rows = rows_of(catalog.load_table("db.t"), "select value, place.x, other.x from rows order by value")
    assert rows == [("0", 0, None), ("1", None, None), ("2", 2, None)]


def ordered(df):
    """Return all rows; Spark reads the source again for a sample, which Spark Connect counts, too."""
    return frame_process(df).orderBy("at")


def limited(df):
    """Return some rows, and leave the number of records unknown."""
    return frame_process(df).limit(3)


@pytest.mark.parametrize(("first", "corrected"), [(frame_process, ordered), (limited, limited)])
def test_a_reprocessing_that_skips_more_replaces_nothing(broker, spark, table, first, corrected):
    """Otherwise the rows of the records that it does not read would be lost."""
    catalog, sink = table
    source = broker.topic("src", 2)
    broker.produce(source, records(20))
    spec = spec_of(broker, sink, source)
    read_process_write(spark, spec, first)
    before = values_of(catalog.load_table("db.t"))
    again = replace(
        spec,
        sink=replace(sink, reprocess="replace"),
        clear_number=1,
        on_committed="reprocess",
        skip_offsets=(OffsetRange(source, 0, 0, 4),),
    )
    with pytest.raises(OffsetsOutOfRange, match=rf"{source}-0: the run read .* records, its reprocessing "):
        read_process_write(spark, again, corrected)
    assert values_of(catalog.load_table("db.t")) == before


@pytest.mark.parametrize("process", [frame_process, arrow_columns], ids=["frame", "arrow"])
def test_partitions_of_the_table_are_honoured(broker, spark, table, process):
    """Files are in the partitions of the table's spec."""
    catalog, sink = table
    with catalog.load_table("db.t").update_spec() as update:
        update.add_identity("partition")
    source = broker.topic("src", 2)
    broker.produce(source, records(20))
    read_process_write(spark, spec_of(broker, sink, source), process)

    files = catalog.load_table("db.t").inspect.files().to_pylist()
    counts = {0: 0, 1: 0}
    for file in files:
        counts[file["partition"]["partition"]] += file["record_count"]
    assert counts == {0: 10, 1: 10}


def test_a_wrong_column_is_refused_before_anything_is_read(broker, spark, table):
    """For a DataFrame by the driver; for an Arrow process by the task that met it."""
    _, sink = table
    source = broker.topic("src", 2)
    broker.produce(source, records(3))
    spec = spec_of(broker, sink, source)
    with pytest.raises(ProcessFailed, match=r"column 'key', which iceberg:c/db\.t does not have"):
        read_process_write(spark, spec, lambda df: df.selectExpr("cast(value as string) value", "key"))
    with pytest.raises(ProcessFailed, match=r"column 'at' as array<void>, for which Arrow has no type"):
        read_process_write(spark, spec, lambda df: df.selectExpr("cast(value as string) value", "array() at"))
    with pytest.raises(ProcessFailed, match="'value' as"):
        read_process_write(spark, spec, lambda df: df.selectExpr("offset value"))
    with pytest.raises(ProcessFailed, match="'partition' as string"):
        read_process_write(spark, spec, text_partition)


@arrow_process
def text_partition(batch):
    return pa.table(
        {"value": pc.cast(batch["value"], pa.string()), "partition": pc.cast(batch["partition"], pa.string())}
    )


@arrow_process
def nullable(batch):
    value = pc.cast(batch["value"], pa.string())
    return pa.table({"value": pc.if_else(pc.equal(value, "v3"), None, value)})


@arrow_process
def unchecked(batch):
    return pa.table({"value": batch["value"].view(pa.string())})


@pytest.mark.parametrize(
    "process",
    [lambda df: df.selectExpr("cast(value as string) value"), unchecked],
    ids=["frame", "arrow"],
)
def test_text_that_is_not_utf8_is_named_with_its_record(broker, spark, table, process):
    """Spark's cast accepts it; statistics are off, so that nothing else checks the text."""
    catalog, sink = table
    with catalog.load_table("db.t").transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    source = broker.topic("src", 1)
    values = [b"good", b"\xff\xfe", b"good"]
    broker.produce(source, [{"key": None, "value": value, "partition": 0} for value in values])
    with pytest.raises(RecordRefused, match=rf"'value' that .*UTF8.*{source}-0, offset 1"):
        read_process_write(spark, spec_of(broker, sink, source), process)
    assert values_of(catalog.load_table("db.t")) == []


@pytest.mark.parametrize(
    "process",
    [lambda df: df.selectExpr("nullif(cast(value as string), 'v3') value"), nullable],
    ids=["frame", "arrow"],
)
def test_a_missing_required_value_is_named_with_its_record(broker, spark, table, process):
    """The search for the record retries parts of the input."""
    catalog, sink = table
    source = broker.topic("src", 1)
    broker.produce(source, [{"key": None, "value": b"v%d" % i, "partition": 0} for i in range(6)])
    with pytest.raises(RecordRefused, match=rf"'value', which .* requires.*{source}-0, offset 3"):
        read_process_write(spark, spec_of(broker, sink, source), process)
    assert values_of(catalog.load_table("db.t")) == []


@arrow_process
def numbers(batch):
    """Raise on text that is not a number."""
    number = pc.cast(pc.cast(batch["value"], pa.string()), pa.int64())
    return pa.table({"value": pc.cast(number, pa.string())})


def frame_numbers(df):
    def numbers_of(batches):
        for batch in batches:
            text = pc.cast(batch["value"], pa.string())
            yield pa.RecordBatch.from_pydict({"value": pc.cast(pc.cast(text, pa.int64()), pa.string())})

    return df.select("value").mapInArrow(numbers_of, "value string")


@pytest.mark.parametrize("process", [numbers, frame_numbers], ids=["arrow", "frame"])
def test_records_on_which_the_process_raises_are_dead_letters_beside_the_table(broker, spark, table, process):
    """All other records become rows."""
    catalog, sink = table
    source, dead = broker.topic("src", 2), broker.topic("dead", 2)
    values = [b"x" if i == 3 else b"%d" % i for i in range(6)]
    broker.produce(source, [{"key": b"k", "value": v, "partition": i % 2} for i, v in enumerate(values)])
    spec = replace(spec_of(broker, sink, source), dead_letter_topic=dead)

    record = read_process_write(spark, spec, process)

    assert values_of(catalog.load_table("db.t")) == sorted(v.decode() for v in values if v != b"x")
    # The search for the record leaves no file; the failed seal has written at most the other task's.
    written = list(Path(sink.properties["warehouse"].removeprefix("file://")).rglob("*.parquet"))
    assert len(written) <= record.details["table"]["files"] + 1
    (letter,) = read_topic(broker.bootstrap, dead)
    assert (letter.key, letter.value, dict(letter.headers)["source.offset"]) == (b"k", b"x", b"1")
    assert (record.records_read, record.dead_letters, record.details["table"]["rows"]) == (6, 1, 5)
