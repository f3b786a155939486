from __future__ import annotations

import socket

import pyarrow as pa
import pytest

from airflow_eos.exceptions import OutcomeUnknown, SendError
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos.sinks.redaction import redacted
from tests.unit.sinks.test_publishing import Attempt


@pytest.mark.parametrize(
    ("properties", "text", "shown"),
    [
        ({"token": "t0psecret"}, "401: t0psecret is wrong", "401: <token> is wrong"),
        ({"credential": "id:t0psecret"}, "no client with t0psecret", "no client with <credential>"),
        (
            {"uri": "postgresql+psycopg2://joe:pa%40ss@db/lake?sslkey=/run/key.pem"},
            "joe may not log in with pa@ss, key /run/key.pem, at postgresql+psycopg2://joe:pa%40ss@db/lake?sslkey=/run/key.pem",
            "joe may not log in with <uri>, key <uri>, at <uri>",
        ),
        (
            {"warehouse": "s3://tenant/7"},
            "GET ?warehouse=s3%3A%2F%2Ftenant%2F7",
            "GET ?warehouse=<warehouse>",
        ),
        ({"ssl": "true", "port": "443"}, "true, port 443", "true, port 443"),
        (None, "as it was", "as it was"),
    ],
)
def test_a_message_holds_no_property(properties, text, shown):
    """Whole, as a part of an address, or escaped in one; what is short is no secret."""
    assert redacted(text, properties) == shown


def test_a_catalog_that_does_not_answer_is_named_without_its_properties():
    """The library's error, which holds the request's address, is not behind ours either."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        properties = {
            "type": "rest",
            "uri": f"http://127.0.0.1:{unused.getsockname()[1]}/tenant-7",
            "warehouse": "s3://tenant-7/lake",
            "token": "t0psecret",
        }
        sink = IcebergSink(IcebergTable("db.t", catalog="c", properties=properties), "eos.p")
        with pytest.raises(OutcomeUnknown, match=r"iceberg:c/db\.t.*ConnectionError") as caught:
            sink.load()
    assert caught.value.__suppress_context__
    assert not [value for name, value in properties.items() if name != "type" and value in str(caught.value)]
    assert "tenant-7%2F" not in str(caught.value)


def test_an_error_of_a_commit_is_told_without_the_properties(iceberg, monkeypatch, caplog):
    """What the log says of each look, and what the run fails with."""
    iceberg.properties = {**iceberg.properties, "s3.session-token": "t0psecret"}
    attempt = Attempt(iceberg)

    def refused(*_):
        raise RuntimeError(f"PUT {iceberg.properties['warehouse']}/db?X-Amz-Security-Token=t0psecret: 403")

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog.commit_table", refused)
    monkeypatch.setattr("airflow_eos.run.publishing.MAX_LOOKS", 3)
    with pytest.raises(OutcomeUnknown, match=r"PUT <warehouse>/db.*=<s3.session-token>: 403") as caught:
        attempt.publish()
    assert "PUT" in caplog.text
    assert "t0psecret" not in f"{caught.value}{caught.value.__cause__}{caplog.text}"


def test_an_error_of_a_storage_is_told_without_the_properties(warehouse, monkeypatch):
    """In the task that writes a data file."""
    sink = IcebergSink(IcebergTable("db.t", catalog="c", properties={**warehouse, "s3.k": "t0psecret"}), "p")
    writer = sink.writer(sink.load(), "label")

    def refused(*_, **__):
        raise OSError("403 for t0psecret")

    monkeypatch.setattr("pyiceberg.io.pyarrow._dataframe_to_data_files", refused)
    with pytest.raises(SendError, match=r"db\.t: a data file cannot be written: OSError: 403 for <s3\.k>"):
        writer.write(writer.columns(pa.table({"id": [1]})))
