"""This Airflow's policy: runs whose Dag names no Spark connection compute on the cluster."""

from __future__ import annotations

from typing import Any

CONNECTION = "spark_cluster"


def task_policy(task: Any) -> None:
    """Set ``conn_id`` on an operator of airflow-eos that has none.

    The example Dags set none, to run Spark inside the task; with this policy they need no change.
    """
    # By name: this file is loaded during Airflow's own import, too early to import operators.
    is_own = any(kind.__name__ == "ReadProcessWriteOperator" for kind in type(task).__mro__)
    if is_own and task.conn_id is None:
        task.conn_id = CONNECTION
