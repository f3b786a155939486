"""PostgreSQL tables written by Spark's tasks: DataFrame and Arrow processes, read again by psql."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_eos import arrow_process
from airflow_eos.engine import read_process_write
from airflow_eos.exceptions import ProcessFailed, RecordRefused
from airflow_eos.model.ranges import OffsetRange
from tests.support.postgres_tables import Database
from tests.support.table_processes import arrow_columns, frame_process, records, spec_of


@pytest.fixture
def database(postgres_server):
    db = Database(postgres_server)
    db.create(
        "value text PRIMARY KEY, partition int NOT NULL, at timestamptz, loaded text DEFAULT 'by default'"
    )
    return db


@pytest.mark.parametrize("process", [frame_process, arrow_columns], ids=["frame", "arrow"])
def test_tasks_stage_what_the_process_returns(broker, spark, database, process):
    """Each record once, with the table's defaults for omitted columns; the next run updates by key."""
    source = broker.topic("src", 2)
    broker.produce(source, records(500))
    spec = spec_of(broker, database.sink(), source)
    record = read_process_write(spark, spec, process)

    assert database.counts("value") == dict.fromkeys(sorted(f"v{i}" for i in range(500)), 1)
    assert database.counts("partition") == {"0": 250, "1": 250}
    assert database.counts("loaded || (at IS NULL)") == {"by defaultfalse": 500}
    assert (record.records_read, record.records_written, record.details["table"]["rows"]) == (500, 500, 500)

    database.sql(f"UPDATE {database.table} SET loaded = 'by hand'")
    broker.produce(source, [{"key": None, "value": b"v%d" % (i % 3), "partition": 0} for i in range(9)])
    upsert = database.sink(mode="upsert", key=["value"])
    again = read_process_write(spark, replace(spec, run_id="next", sink=upsert), process)
    assert (again.records_read, again.details["table"]["rows"]) == (9, 3)
    assert database.sql(f"SELECT count(*), count(DISTINCT loaded) FROM {database.table}") == [["500", "1"]]
    assert database.staging() == []


@arrow_process
def last_offset_of_each_key(batch):
    """Each slice has the same keys: the values tell which record was the last."""
    return pa.table(
        {
            "value": pc.cast(batch["key"], pa.string()),
            "partition": pc.cast(batch["offset"], pa.int32()),
        }
    )


def test_the_last_record_of_a_key_wins_over_many_tasks(broker, spark, database):
    """Whichever task stages first: the records of a partition are split into many slices."""
    source = broker.topic("src", 1)
    count = 45_000
    broker.produce(source, [{"key": b"k%d" % (i % 7), "value": b"", "partition": 0} for i in range(count)])
    spec = spec_of(broker, database.sink(mode="upsert", key=["value"]), source)
    record = read_process_write(spark, spec, last_offset_of_each_key)

    rows = database.sql(f"SELECT value, partition FROM {database.table} ORDER BY value")
    assert [int(offset) for _, offset in rows] == [
        max(i for i in range(count) if i % 7 == int(key.removeprefix("k"))) for key, _ in rows
    ]
    assert len(rows) == 7
    assert record.details["table"]["files"] > 1


@arrow_process
def nullable(batch):
    value = pc.cast(batch["value"], pa.string())
    return pa.table(
        {"value": value, "partition": pc.if_else(pc.equal(value, "v3"), None, batch["partition"])}
    )


def test_what_does_not_fit_is_named_with_its_record(broker, spark, database):
    """A type before anything is read; a value by our check, or by the task's COPY, with topic and offset."""
    source = broker.topic("src", 1)
    broker.produce(source, [{"key": None, "value": b"v%d" % i, "partition": 0} for i in range(6)])
    spec = spec_of(broker, database.sink(), source)
    with pytest.raises(ProcessFailed, match=r"'partition' as string; postgres:c/.*\.t has int32"):
        read_process_write(
            spark, spec, lambda df: df.selectExpr("cast(value as string) value", "'a' partition")
        )
    with pytest.raises(RecordRefused, match=rf"'partition', which .* requires.*{source}-0, offset 3"):
        read_process_write(spark, spec, nullable)
    database.sql(f"ALTER TABLE {database.table} ADD kind uuid")
    uuid_of = "if(value = 'v4', 'none', '00000000-0000-0000-0000-000000000000') kind"
    with pytest.raises(RecordRefused, match=rf"type uuid.*{source}-0, offset 4"):
        read_process_write(
            spark, spec, lambda df: df.selectExpr("cast(value as string) value", "partition", uuid_of)
        )
    assert database.values("value") == []
    assert database.staging() == []


def test_a_refusal_is_of_the_record_that_it_names(broker, spark, database):
    """A task refuses the second record before the first one, and the search finds the second."""
    source = broker.topic("src", 1)
    broker.produce(source, [{"key": None, "value": v, "partition": 0} for v in (b"a", b"\0", b"\xff", b"b")])
    spec = spec_of(broker, database.sink(), source)
    with pytest.raises(RecordRefused, match=rf"NUL character.*{source}-0, offset 1 \("):
        read_process_write(spark, spec, frame_process)
    spec = replace(spec, skip_offsets=(OffsetRange(source, 0, 1, 2),))
    with pytest.raises(RecordRefused, match=rf"UTF8 sequence.*{source}-0, offset 2 \("):
        read_process_write(spark, spec, frame_process)
