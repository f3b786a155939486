"""Functions in the documentation that are in no file, run as a reader would who pastes them."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import airflow_eos.spark
from airflow_eos_testing import read_topic
from airflow_eos_testing.trial import SourceRecord, try_process
from spark_apps.customers_table import process as customers
from tests.support.documented_code import FUNCTIONS, blocks

SPEC, TRIAL, PLUGIN, ARROW, FRAMED, TOKEN, MAIN = FUNCTIONS


def pasted(key: str, **names: Any) -> dict[str, Any]:
    """Return what a block defines.

    :param names: what the reader has defined before it.
    """
    namespace = {"__name__": "pasted", **names}
    exec(compile(blocks()[key], key, "exec"), namespace)
    return namespace


def test_a_run_without_airflow(spark, broker):
    """With the address and the topics of a broker in place of the page's."""
    source, sink = broker.topic("src"), broker.topic("out")
    broker.produce(source, [{"value": b"one"}, {"value": b"two"}])
    code = blocks()[SPEC].replace("localhost:9092", broker.bootstrap)
    namespace: dict[str, Any] = {"spark": spark, "process": lambda df: df.select("value")}
    exec(code.replace('"src"', repr(source)).replace('"out"', repr(sink)), namespace)
    assert namespace["record"].records_written == 2
    assert [record.value for record in read_topic(broker.bootstrap, sink)] == [b"one", b"two"]


def test_a_trial_and_the_fixtures_of_the_pytest_plugin(spark):
    """Both examples are tests: they are called as pytest does."""
    pasted(TRIAL, process=lambda df: df.select("key", "value"))["test_large_orders_pass"](spark)
    called = []
    namespace = pasted(PLUGIN, run_my_dag=lambda *arguments: called.append(arguments))

    class Kafka:
        bootstrap_servers = "broker:1"

    namespace["test_my_dag"](Kafka(), lambda name, partitions: f"{name} of {partitions}")
    assert called == [("broker:1", "orders of 4")]


def test_the_fixtures_that_the_example_uses_exist(embedded_kafka, kafka_topic):
    """With the parameters that the example uses."""
    assert embedded_kafka.bootstrap_servers
    assert kafka_topic("orders", partitions=4)


def test_arrow_batches_inside_a_dataframe(spark):
    """Values in upper case, keys as they were."""
    records = [SourceRecord(b"a", key=b"k"), SourceRecord(b"b")]
    written = try_process(pasted(ARROW)["process"], records, spark=spark, sink_topic="out")
    assert [(record.key, record.value) for record in written] == [(b"k", b"A"), (None, b"B")]


def test_a_schema_number_in_front_of_the_value(spark):
    """Records of one schema keep the five bytes in front of their values."""
    process = pasted(FRAMED)["process"]
    records = [SourceRecord(b"\0\0\0\1\2body", key=b"k"), SourceRecord(b"\0\0\0\0\7other")]
    written = try_process(lambda df: process(df, "", 258), records, spark=spark, sink_topic="out")
    assert [(record.key, record.value) for record in written] == [(b"k", b"\0\0\0\1\2body")]


def test_customers_as_rows(spark):
    """A tombstone is not a row."""
    value = json.dumps({"id": 7, "name": "Ann", "since": "2026-01-02T03:04:05Z"}).encode()
    rows = spark.createDataFrame([(value,), (None,)], "value binary")
    (row,) = customers(rows).collect()
    assert (row.id, row.name, row.since.year) == (7, "Ann", 2026)


def test_a_token_of_msk(monkeypatch):
    """The library returns milliseconds, the client expects seconds."""
    signer = ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = type(  # type: ignore[attr-defined]
        "MSKAuthTokenProvider",
        (),
        {"generate_auth_token": staticmethod(lambda region: (f"token of {region}", 1500))},
    )
    monkeypatch.setitem(sys.modules, signer.__name__, signer)
    assert pasted(TOKEN)["kafka_token"]("eu-central-1") == ("token of eu-central-1", 1.5)


def test_an_application_hands_over_its_function(monkeypatch):
    """Run as a script it calls ``main``; imported it does not."""
    given = []
    monkeypatch.setattr(airflow_eos.spark, "main", given.append)
    assert pasted(MAIN)["process"].__name__ == "process"
    assert given == []
    assert pasted(MAIN, __name__="__main__")["process"] is given[0]
