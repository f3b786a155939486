"""A real Airflow as companies run it: PostgreSQL, several schedulers, users who sign in, Celery workers."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos_testing import airflow_components
from airflow_eos_testing.airflow import START_TIMEOUT, AirflowStandalone
from airflow_eos_testing.airflow_api import sign_in
from airflow_eos_testing.airflow_processes import descendants, signal_all
from airflow_eos_testing.exceptions import EmbeddedAirflowError
from airflow_eos_testing.postgres import PostgresServer
from airflow_eos_testing.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Mapping

Executor = Literal["CeleryExecutor", "LocalExecutor"]

_FAST_FAILURE_DETECTION = {
    # A dead scheduler, task or triggerer is detected in seconds; each heartbeats far more often than that.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}
_USER = "admin"
_READY = {"scheduler": b"Adopting or resetting orphaned tasks", "worker": b" ready."}
"""What a component logs once it is ready; the API reports on the others."""
_QUEUED_BY_SQL = """
SELECT job.unixname FROM task_instance AS ti JOIN job ON job.id = ti.queued_by_job_id
WHERE (ti.dag_id, ti.run_id, ti.task_id, ti.map_index) = (:'dag_id', :'run_id', :'task_id', :'map_index')
"""


class AirflowPlatform(AirflowStandalone):
    """Run each component of Airflow as a process of its own, on a PostgreSQL of its own.

    Guarantee and use as :class:`AirflowStandalone`; components are named ``scheduler1``, ``scheduler2``, ...,
    ``worker1``, ..., ``api-server``, ``dag-processor``, ``triggerer``. A killed component stays down until
    :meth:`start_components`. Users sign in: :attr:`api` has a token, requests without one are refused.

    :param executor: ``CeleryExecutor``, or ``LocalExecutor``, where tasks are children of the scheduler.
    :param schedulers: number of schedulers.
    :param workers: number of Celery workers, on a Valkey of their own; ignored with the ``LocalExecutor``.
    :param slots: tasks that each worker runs at once; with the ``LocalExecutor``, that each scheduler does.
    """

    def __init__(
        self,
        dags_folder: str | Path,
        *,
        executor: Executor = "CeleryExecutor",
        schedulers: int = 2,
        workers: int = 2,
        slots: int = 2,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dags_folder, env={**_FAST_FAILURE_DETECTION, **(env or {})}, **options)
        self.executor = executor
        self._schedulers, self._slots = schedulers, slots
        self._workers = workers if executor == "CeleryExecutor" else 0
        self._log_offsets: dict[str, int] = {}
        self.postgres = PostgresServer()
        self.redis = RedisServer()

    def close(self) -> None:
        """Kill every process, Airflow's first, and remove the folders."""
        super().close()
        self.redis.close()
        self.postgres.close()

    # -- components ---------------------------------------------------------------------------------------

    @property
    def components(self) -> list[str]:
        """Names of all components."""
        return list(self._commands())

    def component(self, name: str, *, tree: bool = False) -> list[int]:
        """Return the process id of a component that was started.

        :param tree: also return its descendants: pool processes of a worker, tasks, their JVMs.
        """
        pid = int((self.home / f"{name}.pid").read_text())
        return descendants(self._leader(), [pid]) if tree else [pid]

    def kill_component(self, name: str, *, tree: bool = False) -> list[int]:
        """SIGKILL a component, alone or with its descendants, as in a killed container; return their pids."""
        processes = self.component(name, tree=tree)
        if processes[0] not in self.processes():
            raise EmbeddedAirflowError(f"{name} (pid {processes[0]}) does not run.\n{self.logs()}")
        return signal_all(processes, signal.SIGKILL)

    def start_components(self, *names: str, timeout: float = START_TIMEOUT) -> None:
        """Restart killed components, and wait until every component is healthy."""
        for name in names:
            self._log_offsets[name] = (self.home / f"{name}.log").stat().st_size
            (self.home / f"{name}.again").touch()
        started = [self.home / f"{name}.again" for name in names]
        self._wait(
            lambda: not any(path.exists() for path in started), timeout, "components are not restarted"
        )
        self._wait(self._is_healthy, timeout, "not every component is healthy")

    def is_running(self, name: str) -> bool:
        """Return whether the component's own process exists."""
        return self.component(name)[0] in self.processes()

    def owner_of(self, pid: int) -> str:
        """Return the name of the component that a process descends from."""
        owners = [name for name in self.components if pid in self.component(name, tree=True)]
        if len(owners) != 1:
            raise EmbeddedAirflowError(f"process {pid} belongs to {owners or 'no component'}")
        return owners[0]

    def scheduler_of(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
        """Return the name of the scheduler that queued the task instance, from the metadata database."""
        wanted = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": str(map_index)}
        rows = self.postgres.query(_QUEUED_BY_SQL, **wanted)
        if len(rows) != 1:
            raise EmbeddedAirflowError(f"no scheduler has queued {wanted}")
        return rows[0][0]

    def task_runners(self) -> list[int]:
        """Return the processes of all running components that execute tasks, with their descendants."""
        parts = ("worker",) if self._workers else ("scheduler",)
        running = [name for name in self.components if name.startswith(parts) and self.is_running(name)]
        # With the LocalExecutor the scheduler itself must go on when its executor's processes are frozen.
        skipped = 0 if self._workers else 1
        return [pid for name in running for pid in self.component(name, tree=True)[skipped:]]

    def logs(self, lines: int = 25) -> str:
        """Return the last lines of each component."""
        shown = []
        for path in sorted(self.home.glob("*.log")):
            shown += [f"--- end of {path} ---", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(shown)

    def standing_still(self) -> AbstractContextManager[None]:
        """Freeze nothing: PostgreSQL serves concurrent writers."""
        return nullcontext()

    # -- start --------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        self.postgres.start()
        if self._workers:
            self.redis.start()
        self._env.update(self._set_up() | self._extra_env)
        done = self.cli("db", "migrate", timeout=self._start_timeout)
        if done.returncode:
            raise EmbeddedAirflowError(
                f"airflow db migrate failed.\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        password = secrets.token_hex()
        (self.home / "passwords.json").write_text(json.dumps({_USER: password}))
        super()._launch()
        self._api = sign_in(self.api.base_url, _USER, password)

    def _command(self) -> list[str]:
        return [sys.executable, "-I", "-S", airflow_components.__file__, json.dumps(self._commands())]

    def _is_healthy(self) -> bool:
        for name in self.components:
            path = self.home / f"{name}.pid"
            if path.exists() and int(path.read_text() or 0) not in self.processes():
                raise EmbeddedAirflowError(f"{name} ended while starting.\n{self.logs()}")
        return super()._is_healthy() and all(map(self._has_logged_ready, self.components))

    def _has_logged_ready(self, name: str) -> bool:
        log = self.home / f"{name}.log"
        line = _READY.get(name.rstrip("0123456789"), b"")
        return log.exists() and line in log.read_bytes()[self._log_offsets.get(name, 0) :]

    def _set_up(self) -> dict[str, str]:
        url = self.postgres.url().removeprefix("postgresql")
        settings = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2{url}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg{url}",
            "AIRFLOW__CORE__EXECUTOR": self.executor,
            "AIRFLOW__CORE__PARALLELISM": str(self._slots * (self._workers or 1)),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            # All schedulers would serve their health on the same port.
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        }
        if self._workers:
            settings |= {
                "AIRFLOW__CELERY__BROKER_URL": self.redis.url,
                "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2{url}",
                "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
            }
        return settings

    def _commands(self) -> dict[str, list[str]]:
        airflow = str(self._bin / "airflow")
        parts = ("api-server", "dag-processor", "triggerer")
        commands = {name: [airflow, name] for name in parts}
        for number in range(1, self._schedulers + 1):
            name = f"scheduler{number}"
            # All are on one host: the user name, which the job table records, tells them apart.
            # Their log servers would share one port; tests read the files.
            commands[name] = ["env", f"LOGNAME={name}", airflow, "scheduler", "--skip-serve-logs"]
        for number in range(1, self._workers + 1):
            name = f"worker{number}"
            options = ["-c", str(self._slots), "-H", name, "--pid", str(self.home / f"{name}.celery-pid")]
            quiet = ["--without-gossip", "--without-mingle", "--skip-serve-logs"]
            commands[name] = [airflow, "celery", "worker", *options, *quiet]
        return commands
