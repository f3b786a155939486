"""A real Airflow (scheduler, Dag processor, API server, triggerer) for the duration of a ``with`` block.

It is operated as a user does, by the ``airflow`` command and the REST API: nothing here imports Airflow.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import airflow_processes
from airflow_eos_testing.airflow_api import AirflowApi
from airflow_eos_testing.airflow_database import standing_still
from airflow_eos_testing.airflow_settings import airflow_environment, kafka_connection
from airflow_eos_testing.exceptions import EmbeddedAirflowError
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.session import Session, session_members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["AirflowStandalone", "kafka_connection"]

log = logging.getLogger(__name__)

START_TIMEOUT = 300.0
_POLL = 0.25
_FINAL_RUN_STATES = ("success", "failed")
_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


class AirflowStandalone:
    """Run ``airflow standalone`` (SQLite, LocalExecutor) in a folder of its own, on free ports.

    Guarantee: inside the block every component is healthy; after it no process (tasks, their JVMs and Python
    workers included) and no file is left, also when this process is killed. ``AIRFLOW*`` variables of the
    caller's environment are not inherited. Linux only.

    ::

        with AirflowStandalone("dags", connections={"kafka_default": kafka_connection(servers)}) as airflow:
            run_id = airflow.trigger("flights")
            airflow.kill_task("flights", run_id, "classify")          # SIGKILL, as the OOM killer does
            assert airflow.wait_for_run("flights", run_id) == "success"
            airflow.clear("flights", run_id, ["classify"])

    :param dags_folder: folder of Dag files.
    :param connections: connection id -> JSON document or URI, passed as ``AIRFLOW_CONN_*``.
    :param env: further environment variables; they win.
    :param python: the interpreter whose Airflow is started.
    :param keep: keep the folder with logs and database at the end, and log its path.
    :param start_timeout: seconds for all components to be healthy.
    """

    def __init__(
        self,
        dags_folder: str | Path,
        *,
        connections: Mapping[str, str | Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        keep: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.dags_folder = Path(dags_folder).resolve()
        self.keep = keep
        self._connections = dict(connections or {})
        self._extra_env = dict(env or {})
        self._bin = Path(python).parent
        self._start_timeout = start_timeout
        self._home: Path | None = None
        self._session: Session | None = None
        self._env: dict[str, str] = {}
        self._api: AirflowApi | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every component and wait until each reports that it is healthy.

        :raises EmbeddedAirflowError: it ended, or was not healthy in time; with the end of its log.
        """
        if self._home is not None:
            raise EmbeddedAirflowError("This Airflow is already running")
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-airflow-"))
        try:
            port, *log_ports = free_ports(4)
            self._env = airflow_environment(
                self._home, self.dags_folder, port=port, log_ports=log_ports, connections=self._connections
            )
            self._env["PATH"] = f"{self._bin}{os.pathsep}{self._env.get('PATH', os.defpath)}"
            self._env.update(self._extra_env)
            self._api = AirflowApi(f"http://{HOST}:{port}")
            self._launch()
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        """Start the processes, and wait until each component is healthy."""
        self._session = Session(
            self._command(),
            env=self._env,
            home=self.home,
            log_path=self.home / "standalone.log",
            keep=self.keep,
        )
        self._wait(self._is_healthy, self._start_timeout, "not every component is healthy")

    def _command(self) -> list[str]:
        return [str(self._bin / "airflow"), "standalone"]

    def close(self) -> None:
        """Kill every process and remove the folder; a second call does nothing."""
        session, self._session = self._session, None
        home, self._home = self._home, None
        if session is not None:
            session.end()
        if home is not None and self.keep:
            log.warning("Kept logs and database of Airflow in %s", home)
        elif home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _is_healthy(self) -> bool:
        if self._session is None or not self._session.is_alive:
            raise EmbeddedAirflowError(f"Airflow ended while starting.\n{self.logs()}")
        return not self._unhealthy(self.api.health())

    @staticmethod
    def _unhealthy(health: dict[str, Any] | None) -> list[str]:
        if health is None:
            return ["api-server"]
        return [part for part in _PARTS if health.get(part, {}).get("status") != "healthy"]

    # -- state and logs ----------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """``AIRFLOW_HOME``: database, logs, temporary files."""
        if self._home is None:
            raise EmbeddedAirflowError("This Airflow is not running: use it as a context manager")
        return self._home

    @property
    def api(self) -> AirflowApi:
        """The REST API."""
        if self._api is None:
            raise EmbeddedAirflowError("This Airflow is not running: use it as a context manager")
        return self._api

    def logs(self, lines: int = 60) -> str:
        """Return the last lines of the output of all components."""
        path = self.home / "standalone.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join([f"--- end of {path} ---", *text.splitlines()[-lines:]])

    def condition(self) -> str:
        """Describe briefly which components are unhealthy; ``standalone`` does not restart any."""
        unhealthy = self._unhealthy(self.api.health())
        return f"not healthy: {', '.join(unhealthy)}" if unhealthy else "every component is healthy"

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Return the log of one try, one line per event, as the task wrote it; empty before it starts."""
        path = self._log_folder(dag_id, run_id, task_id) / f"attempt={try_number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def trigger_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return what the triggers of all tries of a task have logged."""
        paths = sorted(self._log_folder(dag_id, run_id, task_id).glob("attempt=*.trigger.*"))
        return "".join(path.read_text(errors="replace") for path in paths)

    def cli(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run ``airflow <arguments>`` against this database and return what it printed."""
        return subprocess.run(
            [str(self._bin / "airflow"), *arguments],
            env=self._env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    # -- Dag runs -----------------------------------------------------------------------------------------

    def trigger(
        self,
        dag_id: str,
        run_id: str | None = None,
        *,
        conf: Mapping[str, Any] | None = None,
        logical_date: str | None = None,
        timeout: float = 60,
        **fields: Any,
    ) -> str:
        """Wait until the Dag is parsed, unpause it, trigger a run, and return its run id.

        :param fields: further fields of the request, such as ``data_interval_start`` or ``partition_key``.
        :raises EmbeddedAirflowError: the Dag does not appear; with the import errors.
        """
        self.wait_for_dag(dag_id, timeout=timeout)
        self.api.unpause(dag_id)
        run_id = run_id or f"test__{uuid.uuid4().hex[:8]}"
        body = {"dag_run_id": run_id, "logical_date": logical_date, "conf": dict(conf or {}), **fields}
        self.api.call("POST", f"/dags/{dag_id}/dagRuns", body)
        return run_id

    def wait_for_dag(self, dag_id: str, *, timeout: float = 60) -> None:
        """Wait until the Dag processor has stored the Dag."""
        try:
            self._wait(lambda: self.api.has_dag(dag_id), timeout, f"Dag {dag_id!r} does not appear")
        except EmbeddedAirflowError as error:
            raise EmbeddedAirflowError(f"{error}\nimport errors: {self.api.import_errors()}") from None

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a Dag run: ``queued``, ``running``, ``success`` or ``failed``."""
        return str(self.api.run(dag_id, run_id)["state"])

    def wait_for_run(
        self, dag_id: str, run_id: str, states: Collection[str] = _FINAL_RUN_STATES, *, timeout: float = 180
    ) -> str:
        """Wait until the Dag run is in one of the states; return it."""
        seen_states: list[str] = []

        def arrived() -> bool:
            seen_states[:] = [self.run_state(dag_id, run_id)]
            return seen_states[0] in states

        self._wait(
            arrived, timeout, f"run {run_id!r} of {dag_id!r} is in none of {sorted(states)}", seen_states
        )
        return seen_states[0]

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return the task instance as the API shows it: ``state``, ``try_number``, ``id``, ``pid``, ..."""
        return self.api.task(dag_id, run_id, task_id, map_index)

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str],
        *,
        try_number: int | None = None,
        map_index: int = -1,
        timeout: float = 180,
    ) -> dict[str, Any]:
        """Wait until the task instance is in one of the states, in try ``try_number`` if given; return it."""
        task: dict[str, Any] = {}

        def arrived() -> bool:
            task.clear()
            task.update(self.task(dag_id, run_id, task_id, map_index))
            return task["state"] in states and try_number in (None, task["try_number"])

        failure = f"task {task_id!r} of {dag_id!r} {run_id!r} is in none of {sorted(states)}"
        try:
            self._wait(arrived, timeout, failure, task)
        except EmbeddedAirflowError as error:
            raise EmbeddedAirflowError(f"{error}\n{self._attempt_logs(dag_id, run_id, task_id)}") from None
        return task

    def _log_folder(self, dag_id: str, run_id: str, task_id: str) -> Path:
        return self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"

    def _attempt_logs(self, dag_id: str, run_id: str, task_id: str, lines: int = 40) -> str:
        """Return the last log lines of every try of a task, including its triggers'."""
        folder = self._log_folder(dag_id, run_id, task_id)
        shown = []
        for path in sorted(folder.rglob("attempt=*.log*")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            shown += [f"--- end of {path.relative_to(folder)} ---", *tail]
        return "\n".join(shown)

    def clear(self, dag_id: str, run_id: str, task_ids: Collection[str], **fields: Any) -> None:
        """Clear task instances as the UI does: they run again; the run's ``clear_number`` grows.

        :param fields: further fields of the request, such as ``include_downstream``.
        """
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "reset_dag_runs": True,
            **fields,
        }
        self.api.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Clear a whole Dag run as the UI does, once it has ended.

        A run whose tasks have all ended is still ``running`` until the scheduler ends it. A run cleared just
        before would be ended all the same, and its cleared tasks would never run.
        """
        self.wait_for_run(dag_id, run_id)
        body = {"dry_run": False, "only_failed": False}
        self.api.call("POST", f"/dags/{dag_id}/dagRuns/{run_id}/clear", body)

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task instance by hand: ``success``, ``failed`` or ``skipped``."""
        self.api.call(
            "PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": state}
        )

    def xcom(
        self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", *, map_index: int = -1
    ) -> Any:
        """Return an XCom value, decoded from its JSON form."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        value = self.api.call("GET", f"{path}?map_index={map_index}&deserialize=false")["value"]
        return json.loads(value) if isinstance(value, str) else value

    # -- task processes -----------------------------------------------------------------------------------

    def task_processes(
        self, dag_id: str, run_id: str, task_id: str, *, tree: bool = False, map_index: int = -1
    ) -> list[int]:
        """Return the process ids of the task instance's current try: its Python process.

        :param tree: also the processes of its process group (JVM) and their descendants (Python workers).
        """
        instance = self.task(dag_id, run_id, task_id, map_index)
        return airflow_processes.task_processes(self._leader(), instance["id"], tree=tree)

    def kill_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        signum: int = signal.SIGKILL,
        *,
        tree: bool = False,
        map_index: int = -1,
        timeout: float = 60,
    ) -> list[int]:
        """Wait until the task's process exists, send it a signal, and return the process ids.

        :param tree: signal its JVM and Python workers too, as when a container is killed.
        """
        pids: list[int] = []

        def appeared() -> bool:
            pids[:] = self.task_processes(dag_id, run_id, task_id, tree=tree, map_index=map_index)
            return bool(pids)

        self._wait(appeared, timeout, f"task {task_id!r} of {dag_id!r} {run_id!r} has no process")
        signalled = airflow_processes.signal_all(pids, signum)
        if pids[0] not in signalled:
            raise EmbeddedAirflowError(f"the process of task {task_id!r} ended before it could be signalled")
        return signalled

    def standing_still(self) -> AbstractContextManager[None]:
        """Freeze scheduler, Dag processor and triggerer, which write to SQLite on their own, for the block.

        For commands that must not fail on a locked database, such as ``cli("backfill", "create", ...)``.
        """
        writers = airflow_processes.writers(self._leader())
        if len(writers) < len(airflow_processes.WRITERS):
            raise EmbeddedAirflowError(
                f"of {airflow_processes.WRITERS} {len(writers)} run; {self.condition()}\n{self.logs()}"
            )
        return standing_still(writers, self.home / "airflow.db")

    def processes(self) -> list[int]:
        """Return the ids of every process of this Airflow."""
        return session_members(self._leader())

    def _leader(self) -> int:
        if self._session is None:
            raise EmbeddedAirflowError("This Airflow is not running: use it as a context manager")
        return self._session.leader_pid

    def _wait(self, holds: Callable[[], bool], timeout: float, complaint: str, last: Any = None) -> None:
        deadline = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > deadline:
                seen = f" (last seen: {last})" if last else ""
                raise EmbeddedAirflowError(
                    f"After {timeout:.0f} s {complaint}{seen}; {self.condition()}.\n{self.logs()}"
                )
            time.sleep(_POLL)
