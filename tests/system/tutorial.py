"""The Dag of docs/tutorial-tables.md as tests deploy it: with its own topic, on the warm Spark server."""

from __future__ import annotations

from tests.system.airflow_env import ROOT

DAG, TASK, TOPIC = "orders_table", "load", "tutorial-in"
TUTORIAL = (ROOT / "docs" / "tutorial-tables.md").read_text()


def tutorial_dag() -> str:
    """Return the text of the Dag file whose code the page shows."""
    text = (ROOT / "dags" / f"{DAG}.py").read_text()
    topics = 'topics=["orders"],'
    assert topics in text
    return text.replace(topics, f'topics=["{TOPIC}"], conn_id="spark_shared",')
