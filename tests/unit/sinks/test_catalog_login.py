"""Catalogs that refuse the connection's credentials: REST over HTTP, and in PostgreSQL."""

from __future__ import annotations

import json
import threading
import traceback
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown, UnknownTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.table import TableLayout
from airflow_eos.run.publishing import Claim, Publisher
from airflow_eos.sinks import base_sink, iceberg
from airflow_eos.sinks.iceberg import IcebergSink
from tests.unit.sinks.test_postgres_publishing import locked_server  # noqa: F401 - a fixture

SECRET = "t0psecret"
UNAUTHORIZED = {"error": {"message": f"{SECRET} is wrong", "type": "NotAuthorizedException", "code": 401}}
INVALID_CLIENT = {"error": "invalid_client", "error_description": f"no client {SECRET}"}


NO_TABLE = {"error": {"message": "db.t does not exist", "type": "NoSuchTableException", "code": 404}}
OPENED = {"defaults": {}, "overrides": {}}


@contextmanager
def refusing_catalog(code, content, until=None, answered="/config", *, is_opened=False):
    """A catalog that gives every request the same answer; yields its address.

    :param content: sent as JSON; bytes are sent as they are.
    :param until: event before which it answers only requests for paths that end with ``answered``.
    :param is_opened: whether it returns its configuration.
    """

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.answer_with(200, OPENED) if is_opened and "/config" in self.path else self.answer_with(
                code, content
            )

        def answer_with(self, code, content):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if until is not None and not self.path.partition("?")[0].endswith(answered):
                until.wait(60)
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815 - names of the base class

        def log_message(self, *_):
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def sink_of(address, **login):
    properties = {"uri": address, "oauth2-server-uri": f"{address}/tokens", **login}
    return IcebergSink(IcebergTable("db.t", catalog="c", properties=properties), "eos.p")


@pytest.mark.parametrize(
    ("code", "answer", "login"),
    [
        (401, UNAUTHORIZED, {"token": SECRET}),
        (403, UNAUTHORIZED, {"token": SECRET}),
        (419, UNAUTHORIZED, {"token": SECRET}),
        (401, INVALID_CLIENT, {"credential": f"joe:{SECRET}"}),
        (400, INVALID_CLIENT, {"credential": f"joe:{SECRET}"}),
    ],
)
def test_refused_credentials_are_no_catalog_that_is_away(code, answer, login):
    """The error is final, and has no secret."""
    with (
        refusing_catalog(code, answer) as address,
        pytest.raises(ConfigurationError, match="does not take the credentials") as refused,
    ):
        sink_of(address, **login).load()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_a_catalog_that_is_away_is_asked_again():
    """A proxy in front of it may answer instead."""
    with refusing_catalog(503, {}) as address, pytest.raises(OutcomeUnknown):
        sink_of(address, token=SECRET).load()


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (NO_TABLE, UnknownTable, "create the table 'db.t'"),
        (b"<html>default backend - 404</html>", OutcomeUnknown, "default backend"),
        (b"", OutcomeUnknown, "Not Found"),
        ({"timestamp": 0, "status": 404, "path": "/v1"}, OutcomeUnknown, "a retry asks again"),
    ],
    ids=["the catalog", "a gateway", "a gateway of few words", "a gateway in JSON"],
)
def test_only_the_catalog_itself_says_that_there_is_no_table(content, error, says):
    """During a deployment, a proxy's answer fails no run for good and takes no INTENT back."""
    with (
        refusing_catalog(404, content, is_opened=True) as address,
        pytest.raises(error, match=f"(?s){says}"),
    ):
        sink_of(address, token=SECRET).load()


@pytest.mark.parametrize(
    ("answered", "login", "says"),
    [
        ("/config", {"token": SECRET}, "Read timed out"),
        ("/nothing", {"token": SECRET}, "no answer in"),
        ("/nothing", {"credential": f"joe:{SECRET}"}, "no answer in"),
    ],
)
def test_a_catalog_that_takes_a_request_and_answers_nothing_is_asked_again(
    monkeypatch, caplog, answered, login, says
):
    """A run or command does not wait for ever for the table, its configuration or a token."""
    monkeypatch.setattr(iceberg, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(base_sink, "_SILENT_SECONDS", 0.1)
    is_over = threading.Event()
    with refusing_catalog(200, OPENED, is_over, answered) as address:
        with pytest.raises(OutcomeUnknown, match=says):
            sink_of(address, **login).load()
        is_over.set()
    assert "catalog or storage has not answered for" in caplog.text


def test_credentials_that_expire_under_a_run_leave_the_retry_to_new_ones():
    """The retry reads the connection again; the rows may be in the table by then."""
    claim = Claim("run/p/1", "cursor", 10, TableLayout("uuid", 0, 0), lasting=True)
    with refusing_catalog(401, UNAUTHORIZED) as address:
        publisher = Publisher(sink_of(address, token=SECRET), lambda _: frozenset(), sleep=lambda _: None)
        with pytest.raises(OutcomeUnknown, match="A retry, with what the connection says then"):
            publisher.publish(claim, [])
        with pytest.raises(ConfigurationError, match="does not take the credentials"):
            publisher.settle(claim)


@pytest.mark.process
@pytest.mark.parametrize(
    ("login", "error", "says"),
    [
        (f"joe:{SECRET}", ConfigurationError, 'password authentication failed for user "joe"'),
        ("guest", OutcomeUnknown, "too many connections"),
    ],
)
def test_a_database_with_a_catalog_refuses_a_login_as_one_with_a_table_does(
    locked_server,  # noqa: F811 - the fixture
    login,
    error,
    says,
):
    """The error is final, unless a retry may find a free connection."""
    uri = f"postgresql+psycopg2://{login}@/postgres?host={locked_server.home}"
    properties = {"type": "sql", "uri": uri, "warehouse": "file:///nowhere"}
    sink = IcebergSink(IcebergTable("db.t", catalog="c", properties=properties), "eos.p")
    with pytest.raises(error, match=says) as refused:
        sink.load()
    sink.close()
    assert SECRET not in "".join(traceback.format_exception(refused.value))
