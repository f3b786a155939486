"""A run on a real YARN whose sink is a table: the driver dies between the table's commit and Kafka's."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pytest

from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos_testing.faults.half_send import let_go
from airflow_eos_testing.faults.yarn_cluster import kill
from tests.support.lakes import IcebergLake
from tests.support.patience import eventually, wait_until
from tests.support.yarn_runs import ONE_EXECUTOR, RECORDS, SECRET

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

COLUMNS = pa.schema([("value", pa.string())])
STOPS_BEHIND_THE_TABLE = """
import pathlib
import time

from airflow_eos.run.publishing import Publisher

folder = pathlib.Path({folder!r})
publish = Publisher.publish

def held(publisher, claim, files):
    receipt = publish(publisher, claim, files)
    (folder / "published").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return receipt

Publisher.publish = held

def process(df):
    (folder / f"processed-{{time.time_ns()}}").touch()
    return df.selectExpr("cast(value as string) as value")
"""


def test_a_second_application_master_adopts_the_rows_of_the_first(yarn, task, broker, tmp_path, monkeypatch):
    """The first is killed when its rows are in the table and the ledger has no record yet."""
    lake = IcebergLake(tmp_path, COLUMNS)
    extra = {**lake.properties, "s3.secret-access-key": f"{SECRET}-of-the-storage"}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "iceberg", "extra": extra}))
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    copying = task(
        STOPS_BEHIND_THE_TABLE.format(folder=str(meeting)),
        sink_topic=None,
        sink=IcebergTable("db.t", catalog="c"),
        conf=ONE_EXECUTOR,
    )
    trigger = copying.defer()
    wait_until((meeting / "published").exists, 120)
    (first,) = yarn.application_masters(trigger.driver_id)
    kill(first)

    result = copying.resume(trigger)
    let_go(meeting)  # for the Python process of the first, if YARN has not ended it yet

    assert yarn.attempts(trigger.driver_id) == 2
    assert len(list(meeting.glob("processed-*"))) == 1, "the second did not process the records again"
    assert result["records_written"] == RECORDS
    assert lake.commits() == 1
    assert Counter(lake.values("value")) == Counter(f"{p}:{i}" for p in range(2) for i in range(RECORDS // 2))
    assert copying.execute(try_number=2)["found"] is True
    yarn.wait_until_ended(trigger.driver_id)
    eventually(lambda: yarn.holding(SECRET), lambda files: not files)
    lake.close()
