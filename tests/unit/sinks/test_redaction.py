from __future__ import annotations

import logging
import socket
import threading
import traceback
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from airflow_eos.exceptions import ConfigurationError, EosError, OutcomeUnknown, SendError, TableRefused
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import EarlierRows, PublishedRun, PublishedRuns, TableCommit, TableReceipt
from airflow_eos.operations.table_checks import table_checks
from airflow_eos.operations.verification import table_finding
from airflow_eos.redaction import redacted
from airflow_eos.sinks import base_sink
from airflow_eos.sinks.delta import DeltaSink
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos.sinks.opening import open_table
from airflow_eos.sinks.postgres_sink import PostgresSink
from tests.support.postgres_pooler import answering, message
from tests.support.run_records import run_record
from tests.unit.sinks import test_postgres_publishing
from tests.unit.sinks.test_publishing import Attempt

PASSWORD = "t0psecret"
REPEATED = f"no route for password={PASSWORD}"


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
        ({"token": "t0psecret\n"}, r"header b'Bearer t0psecret\n'", r"header b'Bearer <token>\n'"),
        ({"token": "t0p\nsécret"}, r"b't0p\ns\xe9cret', 't0p\nsécret'", "b'<token>', '<token>'"),
        (
            {"credential": "id:t0psecret\n"},
            r"no client with 't0psecret\n'",
            r"no client with '<credential>\n'",
        ),
        ({"token": "t0p\ud800cret"}, r"'t0p\ud800cret' is wrong", "'<token>' is wrong"),
        (
            None,
            "[type=missing, input_value={'t': 't0psecret'}, input_type=dict]",
            "[type=missing, input_type=dict]",
        ),
        (None, "\x1b[31m↳\x1b[0m 403 Forbidden", "↳ 403 Forbidden"),
        (None, "as it was", "as it was"),
    ],
)
def test_a_message_holds_no_property(properties, text, shown):
    """As a whole, inside an address, or escaped by an address or by Python; a short value is not a secret.

    Nor does it have a value that a library could not parse, or terminal colours.
    """
    assert redacted(text, properties) == shown


def test_a_catalog_that_does_not_answer_is_named_without_its_properties():
    """The library's error, which has the request's address, is not the cause of ours either."""
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


@contextmanager
def _serving(handler):
    """Serve on a port of this host; yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _CatalogOfOneAnswer(BaseHTTPRequestHandler):
    """Returns a token in an answer that lacks its type."""

    def do_POST(self):
        answer = f'{{"access_token": "{PASSWORD}"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"token": f"{PASSWORD}\n"}, ConfigurationError),
        ({"header.Authorization": f"Bearer {PASSWORD}\n"}, ConfigurationError),
        ({"credential": "id:of-the-client"}, OutcomeUnknown),
    ],
    ids=["token", "header", "issued"],
)
def test_a_token_that_a_library_repeats_is_not_shown(properties, error):
    """With Python's escape of a newline; and a token that the catalog issued, in a valid answer."""
    with _serving(_CatalogOfOneAnswer) as uri:
        catalog = {"type": "rest", "uri": uri, "oauth2-server-uri": f"{uri}/tokens", **properties}
        with pytest.raises(error, match=r"eader|token_type") as caught:
            IcebergSink(IcebergTable("db.t", catalog="c", properties=catalog), "eos.p").load()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


class _StoreOfOneAnswer(BaseHTTPRequestHandler):
    """Refuses a signature as S3 does, with the headers that were signed."""

    def do_GET(self):
        token = self.headers["x-amz-security-token"]
        request = f"<CanonicalRequest>GET\nx-amz-security-token:{token}\n</CanonicalRequest>"
        answer = f"<Error><Code>SignatureDoesNotMatch</Code>{request}</Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_a_token_of_no_connection_that_a_store_repeats_is_not_shown(monkeypatch):
    """If driver and executors have their own credentials, as in the environment."""
    with _serving(_StoreOfOneAnswer) as uri:
        for name, value in {
            "AWS_ENDPOINT_URL": uri,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "r",
            "AWS_ACCESS_KEY_ID": "AKIA",
            "AWS_SECRET_ACCESS_KEY": "of-the-key",
            "AWS_SESSION_TOKEN": PASSWORD,
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigurationError, match=r"(?s)does not take.*SignatureDoesNotMatch") as caught:
            DeltaSink(DeltaTable("s3://lake/t", connection=None), "p").load()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_an_error_of_a_commit_is_told_without_the_properties(iceberg, monkeypatch, caplog):
    """Neither the log of each load nor the run's error has them."""
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


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_an_error_of_the_look_at_earlier_rows_is_told_without_the_properties(kind, request, monkeypatch):
    """Before any input is read, and in the commit; the table may be loaded again."""
    lake = request.getfixturevalue(kind)
    properties = {**(lake.sink().properties or {}), "token": PASSWORD}
    sink = open_table(replace(lake.sink(), properties=properties), "eos.p")
    version = sink.load()
    earlier = (EarlierRows(TableReceipt(1, 1, 1), "label"),)
    runs = PublishedRuns({"s": PublishedRun("run/p/1", 1, TableReceipt(0, 0, 0), lasting=True)})

    def refused(*_):
        raise OSError(f"403 for {PASSWORD}")

    monkeypatch.setattr(f"airflow_eos.sinks.{kind}.files_as_added", refused)
    for call in (
        lambda: sink.refuse_rewritten(version, earlier),
        lambda: sink.commit(version, TableCommit("s", runs, replaces=earlier)),
    ):
        with pytest.raises(OutcomeUnknown, match="OSError: 403 for <token>") as caught:
            call()
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_an_error_of_a_storage_is_told_without_the_properties(warehouse, monkeypatch):
    """In the task that writes a data file."""
    sink = IcebergSink(IcebergTable("db.t", catalog="c", properties={**warehouse, "s3.k": "t0psecret"}), "p")
    writer = sink.writer(sink.load(), "label")

    def refused(*_, **__):
        raise OSError("403 for t0psecret")

    monkeypatch.setattr("pyiceberg.io.pyarrow.ParquetFormatWriter.write", refused)
    with pytest.raises(SendError, match=r"db\.t: a data file cannot be written: OSError: 403 for <s3\.k>"):
        writer.write(writer.columns(pa.table({"id": [1]})))


def test_an_error_of_an_object_store_is_told_without_its_options(delta, monkeypatch):
    """In the task that writes a data file; Spark shows the whole traceback of a failed task."""
    options = {"aws_secret_access_key": PASSWORD}
    sink = DeltaSink(DeltaTable(str(delta.folder), properties=options), "p")
    writer = sink.writer(sink.load(), "label")

    def refused(*_, **__):
        raise OSError(f"403 for {PASSWORD}")

    monkeypatch.setattr("pyarrow.parquet.write_table", refused)
    with pytest.raises(
        SendError, match="a data file cannot be written: OSError: 403 for <aws_secret"
    ) as caught:
        writer.write(writer.columns(pa.table({"id": [1]})))
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


# -- PostgreSQL: libpq and poolers quote their input --


@contextmanager
def talkative_pooler():
    """A port that refuses each client in PostgreSQL's protocol, and repeats the password."""
    with answering(message(b"E", b"SFATAL\0C08006\0M%s\0\0" % REPEATED.encode())) as properties:
        yield {**properties, "dbname": "warehouse", "password": PASSWORD}


def postgres_table(properties):
    return PostgresTable("public.t", connection="warehouse", properties=properties)


def log_text(caught, caplog):
    """Return everything that a task's log has about an error."""
    return "".join(traceback.format_exception(caught.value)) + caplog.text


def test_no_error_of_a_database_holds_the_password(caplog):
    """Neither the error nor its cause; host and user stay."""
    with talkative_pooler() as properties:
        sink = PostgresSink(postgres_table(properties), "eos.p")
        with pytest.raises(OutcomeUnknown, match=r"127\.0\.0\.1.*no route for password=<password>") as caught:
            sink.load()
    assert PASSWORD not in log_text(caught, caplog)


def test_without_the_redaction_the_error_of_a_database_holds_the_password(monkeypatch):
    """Counter-test: psycopg passes the pooler's message on."""
    monkeypatch.setattr(base_sink, "redacted", lambda text, _: text)
    with talkative_pooler() as properties, pytest.raises(OutcomeUnknown, match=PASSWORD):
        PostgresSink(postgres_table(properties), "eos.p").load()


@pytest.mark.process
def test_what_a_statement_is_refused_with_does_not_hold_the_password(database, caplog):
    """A trigger that opens its own connection may quote it."""
    database.sql(
        f"CREATE FUNCTION {database.schema}.f() RETURNS trigger LANGUAGE plpgsql AS "
        f"'BEGIN RAISE EXCEPTION $${REPEATED}$$; END'; CREATE TRIGGER f BEFORE INSERT ON {database.table} "
        f"FOR EACH ROW EXECUTE FUNCTION {database.schema}.f()"
    )
    properties = {**database.properties, "password": PASSWORD}
    attempt = test_postgres_publishing.Attempt(database, properties=properties)
    with pytest.raises(TableRefused, match="no route for password=<password>") as caught:
        attempt.publish()
    assert PASSWORD not in log_text(caught, caplog)


@pytest.mark.parametrize(
    "properties",
    [{"dbname": f"postgresql://joe:{PASSWORD}@[host/db"}, {"password": PASSWORD, "port": f"5432 {PASSWORD}"}],
    ids=["an address that cannot be read", "a password in another field"],
)
def test_what_libpq_cannot_read_is_not_repeated(properties, caplog):
    """It quotes the value that it cannot parse."""
    with pytest.raises((ConfigurationError, OutcomeUnknown, TableRefused)) as caught:
        PostgresSink(postgres_table(properties), "eos.p").load()
    assert PASSWORD not in log_text(caught, caplog)


@pytest.mark.process
def test_no_error_of_staging_and_publishing_holds_the_password(database, caplog, monkeypatch):
    """The database answers the load, and its pooler refuses what follows."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("airflow_eos.run.publishing.MAX_LOOKS", 2)
    attempt = test_postgres_publishing.Attempt(database)
    rows = attempt.writer.columns(pa.table({"id": [1]}))
    with talkative_pooler() as properties:
        attempt.sink._sink = replace(attempt.sink._sink, properties=properties)
        for call in (
            lambda: attempt.sink.writer(attempt.version, "a" * 20),
            lambda: replace(attempt.writer, sink=attempt.sink._sink).write(rows),
            lambda: attempt.commit(attempt.version, a_bar(attempt)),
            attempt.publish,
        ):
            with pytest.raises(EosError, match="no route for password=<password>") as caught:
                call()
            assert PASSWORD not in log_text(caught, caplog)
        attempt.sink.close()
    assert "staged rows were not dropped" in caplog.text
    assert PASSWORD not in caplog.text


def a_bar(attempt):
    run = PublishedRun("run/p/1", 11, None, lasting=True)
    return TableCommit("cursor", attempt.version.published.with_run("cursor", run))


def test_the_commands_do_not_show_the_password():
    """This holds for doctor and verify."""
    details = {"sink": "postgres:warehouse/public.t", "uuid": "u", "snapshot": 1, "files": 1, "rows": 1}
    with talkative_pooler() as properties:
        table = postgres_table(properties)
        checks = list(table_checks(table, dict))
        finding = table_finding(run_record(details={"table": details}), lambda _: table, lambda: None)
    assert "no route for password=<password>" in checks[-1].found
    assert "no route for password=<password>" in finding.detail
