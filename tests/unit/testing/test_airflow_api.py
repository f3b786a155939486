"""The client of Airflow's REST API, without Airflow: a server answers in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_eos_testing.airflow_api import AirflowApi
from airflow_eos_testing.exceptions import EmbeddedAirflowError

TOKEN = "everybody's"


class Server(ThreadingHTTPServer):
    """Requires a token, like Airflow 3.1.

    :param gives: whether it gives one to everybody.
    """

    def __init__(self, *, gives: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.gives = gives
        self.paths: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.path == "/auth/token":
            self._answer(201 if self.server.gives else 403, {"access_token": TOKEN})
        else:
            authorised = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            self._answer(200 if authorised else 401, {"import_errors": []})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""

    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture(params=[True])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(gives=request.param) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_the_token_that_everybody_gets_is_taken_once(server: Server) -> None:
    """Airflow 3.1 refuses a request without one, even if all users are administrators."""
    api = AirflowApi(f"http://127.0.0.1:{server.server_port}")
    assert api.import_errors() == ""
    assert api.has_dag("flights")
    errors, dag = "/api/v2/importErrors", "/api/v2/dags/flights"
    assert server.paths == [errors, "/auth/token", errors, dag]


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_refusal_stays_one_where_nobody_gets_a_token(server: Server) -> None:
    api = AirflowApi(f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(EmbeddedAirflowError, match="refused with 401"):
        api.import_errors()


def test_a_token_that_was_given_is_not_replaced(server: Server) -> None:
    api = AirflowApi(f"http://127.0.0.1:{server.server_port}", token="wrong")
    with pytest.raises(EmbeddedAirflowError, match="refused with 401"):
        api.import_errors()
    assert "/auth/token" not in server.paths
