"""OpenLineage events that the real Airflow wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lineage_of(folder: Path, job: str, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the task's events by their type, the latest of each; job is ``<dag>.<task>``."""
    path = folder / "lineage.jsonl"
    written = path.read_text() if path.exists() else ""
    whole, _, _ = written.rpartition("\n")  # a task may be writing the last line just now
    events = [json.loads(line) for line in whole.splitlines()]
    return {
        event["eventType"]: event
        for event in events
        if event["job"]["name"] == job and _dag_run(event) == run_id
    }


def datasets(listed: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return namespace and name of each dataset."""
    return sorted((dataset["namespace"], dataset["name"]) for dataset in listed)


def _dag_run(event: dict[str, Any]) -> str:
    return str(event["run"]["facets"]["airflow"]["dagRun"]["run_id"])
