"""Waits for what comes a little later: a task tells of itself after its state is known."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_eos.testing.airflow import AirflowStandalone

T = TypeVar("T")


def eventually(look: Callable[[], T], holds: Callable[[T], object], *, seconds: float = 60) -> T:
    """Look until it holds; return what was seen."""
    deadline = time.monotonic() + seconds
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still {found!r}"
        time.sleep(0.1)
    return found


def deferred(airflow: AirflowStandalone, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> None:
    """Wait until a try is deferred and the scheduler has taken note that its process has ended.

    Airflow 3.3 fails a try whose trigger fires between the two, if it is queued again before the note is
    taken: https://github.com/apache/airflow/issues/72716.
    """
    airflow.wait_for_task(dag_id, run_id, task_id, ["deferred"], try_number=try_number)
    key = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number={try_number},"
    note = re.compile(f"Received executor event with state success for task instance .*{re.escape(key)}")
    log = airflow.home / "standalone.log"
    eventually(lambda: log.read_text(errors="replace"), note.search)
