"""The few calls of Airflow's stable REST API (v2) that tests and the demo need; standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from airflow_eos_testing.exceptions import EmbeddedAirflowError

_TIMEOUT = 90
"""Seconds to wait for an answer: longer than Airflow waits for SQLite's lock before it refuses a request."""
_BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0, 0.0)
"""Seconds before each retry: SQLite has one writer, and Airflow rolls back a writer that waited too long."""


class _Refusal(OSError):
    """An answer with an error status.

    :param code: HTTP status code.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class AirflowApi:
    """Client of an Airflow, with a token or unauthenticated (``[core] simple_auth_manager_all_admins``).

    :param base_url: ``http://host:port``.
    :param token: bearer token for every request; if empty, none is sent.
    """

    def __init__(self, base_url: str, token: str = "") -> None:
        self.base_url = base_url
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request below ``/api/v2`` and return the decoded answer.

        :raises EmbeddedAirflowError: Airflow refused it or cannot be reached; names request and answer.
        """
        for pause in _BUSY_PAUSES:
            answer = self._send(method, f"/api/v2{quote(path, safe='/?=&')}", body)
            if not _database_was_busy(answer):
                break
            time.sleep(pause)
        if isinstance(answer, _Refusal):
            raise EmbeddedAirflowError(
                f"{method} {path} was refused with {answer.code}: {answer.text[:2000]}"
            )
        if isinstance(answer, OSError):
            raise EmbeddedAirflowError(f"{method} {path} got no answer: {answer}")
        return answer

    def health(self) -> dict[str, Any] | None:
        """Return the health of each component, or None while the API server does not answer."""
        answer = self._send("GET", "/api/v2/monitor/health", None)
        return None if isinstance(answer, OSError) else answer

    def has_dag(self, dag_id: str) -> bool:
        """Return whether the Dag is stored."""
        answer = self._send("GET", f"/api/v2/dags/{quote(dag_id)}", None)
        if isinstance(answer, _Refusal) and answer.code != HTTPStatus.NOT_FOUND:
            raise EmbeddedAirflowError(f"GET /dags/{dag_id} was refused with {answer.code}")
        return not isinstance(answer, OSError)

    def import_errors(self) -> str:
        """Return the stack traces of Dag files that could not be imported; empty if there are none."""
        errors = self.call("GET", "/importErrors")["import_errors"]
        return "\n".join(f"{entry['filename']}:\n{entry['stack_trace']}" for entry in errors)

    def unpause(self, dag_id: str) -> None:
        """Unpause the Dag."""
        self._set_paused(dag_id, paused=False)

    def pause(self, dag_id: str) -> None:
        """Pause the Dag: the scheduler starts none of its runs and tasks."""
        self._set_paused(dag_id, paused=True)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a Dag run."""
        return self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return a task instance."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        return self.call("GET", path if map_index < 0 else f"{path}/{map_index}")

    def tries(self, dag_id: str, run_id: str, task_id: str) -> list[dict[str, Any]]:
        """Return all tries of a task instance, oldest first."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/tries"
        instances = self.call("GET", path)["task_instances"]
        return sorted(instances, key=lambda entry: entry["try_number"])

    def _set_paused(self, dag_id: str, *, paused: bool) -> None:
        self.call("PATCH", f"/dags/{dag_id}?update_mask=is_paused", {"is_paused": paused})

    def _send(self, method: str, path: str, body: Any) -> Any:
        answer = self._request(method, path, body)
        if not _is_refused_without_token(answer) or "Authorization" in self._headers:
            return answer
        # Airflow 3.1 issues a token to everybody and requires it; later versions add it themselves.
        token = self._request("GET", "/auth/token", None)
        if isinstance(token, OSError):
            return answer
        self._headers["Authorization"] = f"Bearer {token['access_token']}"
        return self._request(method, path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        request = urllib.request.Request(  # noqa: S310 - always http to loopback
            self.base_url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                return _Refusal(error.code, error.read().decode(errors="replace"))
        except OSError as error:
            return error


def sign_in(base_url: str, username: str, password: str) -> AirflowApi:
    """Return an API client with a token of the user.

    :raises OSError: Airflow cannot be reached, or refused the password.
    """
    request = urllib.request.Request(  # noqa: S310 - http to loopback, or inside a composition
        f"{base_url}/auth/token",
        data=json.dumps({"username": username, "password": password}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        return AirflowApi(base_url, json.load(answer)["access_token"])


def _is_refused_without_token(answer: Any) -> bool:
    return isinstance(answer, _Refusal) and answer.code == HTTPStatus.UNAUTHORIZED


def _database_was_busy(answer: Any) -> bool:
    """Return whether Airflow refused a request because of a database error."""
    return (
        isinstance(answer, _Refusal)
        and answer.code == HTTPStatus.INTERNAL_SERVER_ERROR
        and "Database error" in answer.text
    )
