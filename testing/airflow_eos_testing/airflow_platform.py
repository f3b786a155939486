"""A real Airflow as companies run it: PostgreSQL, several schedulers, Celery workers."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import airflow_components
from airflow_eos_testing.airflow import AirflowStandalone
from airflow_eos_testing.airflow_processes import descendants, signal_all
from airflow_eos_testing.exceptions import EmbeddedAirflowError
from airflow_eos_testing.postgres import PostgresServer
from airflow_eos_testing.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOON = {
    # A dead scheduler or task is missed in seconds; each beats far more often than that.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}


class AirflowPlatform(AirflowStandalone):
    """Run each component of Airflow as a process of its own, on a PostgreSQL of its own.

    Guarantee and use as :class:`AirflowStandalone`; components are named ``scheduler1``, ``scheduler2``, ...,
    ``worker1``, ..., ``api-server``, ``dag-processor``, ``triggerer``. What is killed is not started again.

    :param schedulers: how many.
    :param workers: how many Celery workers, on a Valkey of their own.
    :param slots: tasks that a worker runs at once.
    """

    def __init__(
        self,
        dags_folder: str | Path,
        *,
        schedulers: int = 2,
        workers: int = 2,
        slots: int = 2,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dags_folder, env={**_SOON, **(env or {})}, **options)
        self._schedulers, self._workers, self._slots = schedulers, workers, slots
        self.postgres = PostgresServer()
        self.redis = RedisServer()

    def close(self) -> None:
        """Kill every process, Airflow's first, and remove the folders."""
        super().close()
        self.redis.close()
        self.postgres.close()

    # -- components ---------------------------------------------------------------------------------------

    def component(self, name: str, *, tree: bool = False) -> list[int]:
        """Return the process id of a component that was started.

        :param tree: also of all that it started: slots of a worker, tasks, their JVMs.
        """
        pid = int((self.home / f"{name}.pid").read_text())
        return descendants(self._leader(), [pid]) if tree else [pid]

    def kill_component(self, name: str, *, tree: bool = False) -> list[int]:
        """SIGKILL a component, alone or, as a container ends, with all it started; return whom it hit."""
        found = self.component(name, tree=tree)
        if found[0] not in self.processes():
            raise EmbeddedAirflowError(f"{name} (pid {found[0]}) does not run.\n{self.logs()}")
        return signal_all(found, signal.SIGKILL)

    def owner_of(self, pid: int) -> str:
        """Return the name of the component that a process descends from."""
        names = list(self._commands())
        owners = [name for name in names if pid in self.component(name, tree=True)]
        if len(owners) != 1:
            raise EmbeddedAirflowError(f"process {pid} belongs to {owners or 'no component'}")
        return owners[0]

    def logs(self, lines: int = 25) -> str:
        """Return the last lines of each component."""
        found = []
        for path in sorted(self.home.glob("*.log")):
            found += [f"--- end of {path} ---", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(found)

    def standing_still(self) -> AbstractContextManager[None]:
        """PostgreSQL has as many writers as come: nobody needs to stand still."""
        return nullcontext()

    # -- start --------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        self.postgres.start()
        self.redis.start()
        self._env.update(self._set_up() | self._extra_env)
        done = self.cli("db", "migrate", timeout=self._start_timeout)
        if done.returncode:
            raise EmbeddedAirflowError(
                f"airflow db migrate failed.\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        super()._launch()

    def _command(self) -> list[str]:
        return [sys.executable, "-I", "-S", airflow_components.__file__, json.dumps(self._commands())]

    def _is_healthy(self) -> bool:
        for name in self._commands():
            path = self.home / f"{name}.pid"
            if path.exists() and int(path.read_text() or 0) not in self.processes():
                raise EmbeddedAirflowError(f"{name} ended while starting.\n{self.logs()}")
        return super()._is_healthy() and self._schedulers_beat() and self._workers_are_ready()

    def _schedulers_beat(self) -> bool:
        jobs = self.api.call("GET", "/jobs?job_type=SchedulerJob&is_alive=true")
        return int(jobs["total_entries"]) >= self._schedulers

    def _workers_are_ready(self) -> bool:
        logs = [self.home / f"worker{number + 1}.log" for number in range(self._workers)]
        return all(log.exists() and b" ready." in log.read_bytes() for log in logs)

    def _set_up(self) -> dict[str, str]:
        url = self.postgres.url().removeprefix("postgresql")
        return {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2{url}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg{url}",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self._slots * self._workers),
            # Each scheduler would serve its health on the same port.
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "AIRFLOW__CELERY__BROKER_URL": self.redis.url,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2{url}",
            "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
        }

    def _commands(self) -> dict[str, list[str]]:
        airflow = str(self._bin / "airflow")
        parts = ("api-server", "dag-processor", "triggerer")
        commands = {name: [airflow, name] for name in parts}
        for number in range(1, self._schedulers + 1):
            # Log servers would meet on one port; tests read the files.
            commands[f"scheduler{number}"] = [airflow, "scheduler", "--skip-serve-logs"]
        for number in range(1, self._workers + 1):
            name = f"worker{number}"
            options = ["-c", str(self._slots), "-H", name, "--pid", str(self.home / f"{name}.celery-pid")]
            quiet = ["--without-gossip", "--without-mingle", "--skip-serve-logs"]
            commands[name] = [airflow, "celery", "worker", *options, *quiet]
        return commands
