"""Trials of a process function in a session, on given records and on a run's next input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_eos import arrow_process
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError, ProcessFailed
from airflow_eos.ledger import keys
from airflow_eos.operations.queries import ledger_records
from airflow_eos_testing.trial import SourceRecord, try_process, try_range
from spark_apps.flights import process as classify
from tests.support.local_runs import Pipeline

ROOT = Path(__file__).resolve().parents[2]
FLIGHT = {"date": "2001/01/01 00:47", "delay": 66, "distance": 1, "origin": "A", "destination": "B"}


def test_an_apps_function_in_a_session(spark):
    """Records in, records out, dead letters with their headers."""
    records = [SourceRecord(json.dumps(FLIGHT).encode(), key=b"A"), SourceRecord(b"{", partition=2, offset=5)]
    good, bad = try_process(classify, records, spark=spark, sink_topic="out")
    assert (good.topic, good.key, json.loads(good.value)["class"]) == ("out", b"A", "major")
    assert (bad.topic, bad.value) == ("flights-dead-letter", b"{")
    assert "5" in {(value or b"").decode() for _, value in bad.headers}
    assert try_process(classify, [], spark=spark) == []
    with pytest.raises(ProcessFailed, match="no column 'value'"):
        try_process(lambda df: df.select("key"), records, spark=spark)


def test_the_decorated_example_runs_on_the_records_of_the_same_page(spark):
    """Its decorated task reads what getting-started publishes, and its sink exists."""
    page = (ROOT / "docs" / "getting-started.md").read_text()
    (source,) = re.findall(r"```python\n(from airflow\.sdk import dag, task\n.*?)```", page, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(source.replace("\nlarge_orders()\n", "\nmade = large_orders()\n"), namespace)
    (operator,) = namespace["made"].tasks
    (values,) = re.findall(r"order = (\{.*\})\n", page)
    records = [
        SourceRecord(json.dumps(eval(values, {"minute": minute})).encode(), key=str(minute).encode())
        for minute in range(400)
    ]
    created = re.search(r"--topic (\S+):2 --topic (\S+):2", page)
    assert created is not None
    assert (operator.topics, operator.sink_topic) == ([created[1]], created[2])
    process = operator.prepared_process({"dag": operator.dag})
    written = try_process(process, records, spark=spark, sink_topic=operator.sink_topic)
    assert [json.loads(record.value)["price"] for record in written] == [*range(150, 200)] * 2


def test_dry_run_reads_the_first_records_and_changes_nothing(spark, embedded_kafka):
    """The next run's range, for either kind of function; no record, no offset, no transactional id."""
    pipeline = Pipeline(embedded_kafka)
    pipeline.publish(["read"])
    pipeline.run("r1")
    pipeline.publish([f"{number}" for number in range(8)])
    spec = pipeline.changed("r2")
    name = keys.transactional_id(spec)

    def state():
        with ControlPlane(spec) as control:
            owner = control.cluster.describe_transaction(name)
        return pipeline.output(), ledger_records(spec.deployment), owner

    before = state()

    def upper(df):
        return df.selectExpr("key", "concat(cast(value as string), '!') value")

    @arrow_process
    def same(batch):
        return batch

    for process, session, end in ((upper, spark, "!"), (same, None, "")):
        written = try_range(process, spec, spark=session, records=3)
        assert [(record.topic, record.value) for record in written] == [
            (pipeline.sink, f"{number}{end}".encode()) for number in range(3)
        ]
    assert state() == before
    with pytest.raises(ConfigurationError, match="at least 1"):
        try_range(same, spec, records=0)
