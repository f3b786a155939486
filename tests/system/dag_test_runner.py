"""Run Dag files with ``dag.test()``, one after the other, and write the results as JSON.

See ``AirflowEnv.dag_tests``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pendulum


def run(file: str, dag_id: str, logical_date: str, conf: dict[str, Any]) -> dict[str, Any]:
    """Run one Dag and return the result."""
    spec = importlib.util.spec_from_file_location(f"dag_file_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    from airflow.sdk import DAG

    dag = next(value for value in vars(module).values() if isinstance(value, DAG) and value.dag_id == dag_id)
    run = dag.test(logical_date=pendulum.parse(logical_date), run_conf=conf)
    tasks = {
        instance.task_id: {
            "state": instance.state,
            "try_number": instance.try_number,
            "xcom": instance.xcom_pull(task_ids=instance.task_id, key="return_value"),
        }
        for instance in run.get_task_instances()
    }
    return {"state": run.state, "run_id": run.run_id, "clear_number": run.clear_number, "tasks": tasks}


if __name__ == "__main__":
    runs, result = sys.argv[1:]
    Path(result).write_text(json.dumps([run(*arguments) for arguments in json.loads(runs)], default=str))
