"""Airflow's listener of failed tries, in the task's process."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_eos.operators.failure_record import FAILURE_KEY, FailureRecord

log = logging.getLogger(__name__)


class FailureListener:
    """Stores the failure record of each failed try of a task that runs a pipeline."""

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any, error: str | BaseException | None) -> None:
        """Push the record as an XCom; an error is logged and changes nothing for the task."""
        # In the API server, where a user may set a task's state, there is neither an operator nor an error.
        task = getattr(task_instance, "task", None)
        if not hasattr(task, "build_spec") or not isinstance(error, BaseException):
            return
        try:
            record = FailureRecord.of(error, task_instance.try_number)
            task_instance.xcom_push(key=FAILURE_KEY, value=record.to_value())
        except Exception:
            log.warning("The page will not show why this try failed", exc_info=True)
