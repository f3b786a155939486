"""The Dag in the README, as Airflow sees it."""

from __future__ import annotations

import re
from pathlib import Path

from airflow.sdk import DAG

from airflow_eos import Cursor, ReadProcessWriteOperator

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readme_dag_has_ten_lines_and_is_a_dag() -> None:
    """It can be pasted into a Dag file as it is."""
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line]
    assert len(lines) <= 10
    names: dict[str, object] = {}
    source = block[1].replace("\nflights()\n", "\nmade = flights()\n")
    exec(compile(source, str(README.parent / "dags" / "pasted.py"), "exec"), names)
    dag = names["made"]
    assert isinstance(dag, DAG)
    (task,) = dag.tasks
    assert isinstance(task, ReadProcessWriteOperator)
    assert task.ranges == Cursor()
