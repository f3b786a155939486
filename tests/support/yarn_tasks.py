"""Tries of a task that submits to an embedded YARN, in this process or in one that a test may kill."""

from __future__ import annotations

import tests.support.airflow_home  # noqa: F401 - first of all

import asyncio  # isort: skip
import datetime as dt  # isort: skip
import json  # isort: skip
import os  # isort: skip
import subprocess  # isort: skip
import sys  # isort: skip
from pathlib import Path  # isort: skip
from types import SimpleNamespace  # isort: skip
from typing import Any  # isort: skip

from airflow.sdk import DAG  # isort: skip
from airflow.sdk.bases.operator import ExecutorSafeguard  # isort: skip

from airflow_eos.compat import TaskDeferred

from airflow_eos.model.spec import LedgerSettings  # isort: skip
from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator  # isort: skip
from airflow_eos_testing.faults.yarn_cluster import YarnCluster  # isort: skip

ROOT = Path(__file__).parents[2]


class FileStore:
    """A task state store that outlives a process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _all(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return content

    def _write(self, content: dict[str, Any]) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(self.path)

    def get(self, key: str) -> Any:
        return self._all().get(key)

    def set(self, key: str, value: Any) -> None:
        self._write({**self._all(), key: value})

    def delete(self, key: str) -> None:
        self._write({name: value for name, value in self._all().items() if name != key})


class YarnTask:
    """One task instance: each call of :meth:`execute` is a try of it.

    :param folder: folder for the application's code and the task state store.
    :param settings: the operator's parameters; values are JSON.
    """

    def __init__(self, folder: Path, environment: dict[str, str], settings: dict[str, Any]) -> None:
        self.folder, self.environment, self.settings = folder, environment, settings
        self.store = FileStore(folder / "store.json")

    @classmethod
    def on(cls, yarn: YarnCluster, folder: Path, kafka: dict[str, str], **settings: Any) -> YarnTask:
        """Describe a task for a cluster; ``copy_app.py`` in the folder holds its process."""
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.webapp}
        environment = {
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": kafka}),
            "AIRFLOW_CONN_SPARK_YARN": json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}),
            "HADOOP_CONF_DIR": str(yarn.settings),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        conf = yarn.spark_conf() | settings.pop("conf", {})
        tracking = {"conn_id": "spark_yarn", "yarn_track_via_rm_api": True}
        return cls(folder, environment, {"conf": conf, **tracking, **settings})

    def operator(self, **changes: Any) -> Any:
        """Create a new operator, as each process of Airflow does."""
        ExecutorSafeguard.test_mode = True
        os.environ.update(self.environment)
        settings = {**self.settings, **changes}
        return ReadProcessWriteSubmitOperator(
            task_id="copy",
            dag=DAG("copies", schedule=None),
            process=f"{self.folder / 'copy_app.py'}:process",
            retries=2,
            ledger=LedgerSettings(**settings.pop("ledger")),
            **{"deploy_mode": "cluster", **settings},
        )

    def context(self, operator: Any, **dag_run: Any) -> Any:
        """Return a try's context, with the entries that the operator reads."""
        from airflow.sdk.execution_time.context import OutletEventAccessors

        given = {"clear_number": 0, "try_number": 1, "max_tries": operator.retries, **dag_run}
        start = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
        ti = {"try_number": given["try_number"], "max_tries": given["max_tries"]}
        run = {"run_id": "scheduled__2026-11-20", "clear_number": given["clear_number"]}
        return {
            "dag": operator.dag,
            "task": operator,
            "ti": SimpleNamespace(**ti, map_index=-1, stats_tags={}),
            "run_id": run["run_id"],
            "dag_run": SimpleNamespace(
                **run,
                partition_key=None,
                partition_date=None,
                data_interval_start=start,
                data_interval_end=start + dt.timedelta(days=1),
            ),
            "outlet_events": OutletEventAccessors(),
            "task_state_store": self.store,
        }

    def defer(self, **dag_run: Any) -> Any:
        """Start a try; return its trigger, as the triggerer receives it."""
        operator = self.operator(deferrable=True)
        try:
            operator.execute(self.context(operator, **dag_run))
        except TaskDeferred as deferred:
            close(operator)
            path, arguments = deferred.trigger.serialize()
            assert path.endswith(".SparkDriverTrigger")
            return type(deferred.trigger)(**arguments)
        raise AssertionError("it did not defer")

    def resume(self, trigger: Any, **dag_run: Any) -> dict[str, Any]:
        """Run the trigger and finish the try, as another process does."""

        async def event() -> Any:
            return (await anext(trigger.run())).payload

        operator = self.operator(deferrable=True)
        summary: dict[str, Any] = operator.resume(self.context(operator, **dag_run), asyncio.run(event()))
        return summary

    def execute(self, **dag_run: Any) -> dict[str, Any]:
        """Execute a try that does not defer."""
        operator = self.operator()
        try:
            summary: dict[str, Any] = operator.execute(self.context(operator, **dag_run))
        finally:
            close(operator)
        return summary

    def start(self, log: Path, **dag_run: Any) -> subprocess.Popen[bytes]:
        """Execute a try in a process that a test may kill."""
        given = json.dumps([str(self.folder), self.environment, self.settings, dag_run])
        path = os.pathsep.join(map(str, (ROOT, ROOT / "testing")))
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.yarn_tasks", given],
                env={**os.environ, "PYTHONPATH": path},
                stdout=output,
                stderr=output,
            )


def close(operator: Any) -> None:
    """Close the pipe from ``spark-submit``, which the provider leaves open until the process ends."""
    process = getattr(operator._hook, "_submit_sp", None)
    if process is not None and process.stdout is not None:
        process.stdout.close()


def main() -> None:
    """Execute one try."""
    folder, environment, settings, dag_run = json.loads(sys.argv[1])
    YarnTask(Path(folder), environment, settings).execute(**dag_run)


if __name__ == "__main__":
    main()
