"""The Airflow plugin: the pages with their menu entry and tabs, and the listener of failed tries.

Every process of Airflow imports it; only the API server imports the pages' modules.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from airflow_eos import settings
from airflow_eos.operators.failure_record import FAILURE_KEY, FailureRecord

log = logging.getLogger(__name__)

NAME = "Exactly once"
"""Title of the menu entry and of each tab."""


class FailureListener:
    """Listener of failed tries, in the task's process: stores a failure record for tasks of pipelines."""

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any, error: str | BaseException | None) -> None:
        """Push the record as an XCom; an error is logged and changes nothing for the task."""
        # In the API server, where a user may set a task's state, there is neither an operator nor an error.
        task = getattr(task_instance, "task", None)
        # An instance of a mapped task is not an instance of its class before its arguments are resolved.
        task = getattr(task, "operator_class", task)
        if not hasattr(task, "build_spec") or not isinstance(error, BaseException):
            return
        try:
            record = FailureRecord.of(error, task_instance.try_number)
            task_instance.xcom_push(key=FAILURE_KEY, value=record.to_value())
        except Exception:
            log.warning("The page will not show why this try failed", exc_info=True)


class EosPlugin(AirflowPlugin):
    """The pages; off unless ``[eos] ui_kafka_config_id`` names a connection. Workers need no option."""

    name = "airflow_eos"
    listeners = [FailureListener()]  # noqa: RUF012 - as in the base class

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:
        """Return the entry in the menu *Browse*, and tabs of Dags, their runs and task instances.

        Airflow fills names into the addresses of tabs. It cannot hide the tab of a Dag without pipelines: the
        page reports that there are none.
        """
        if not settings.ui_kafka_config_id():
            return []
        pages = f"{settings.base_path()}{settings.PAGES_PREFIX}"
        tabs = {
            "dag": "dag_id={DAG_ID}",
            "dag_run": "dag_id={DAG_ID}&run_id={RUN_ID}",
            "task_instance": "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}",
        }
        return [
            {
                "name": NAME,
                "href": f"{pages}/",
                "destination": "nav",
                "category": "browse",
                "url_route": settings.PAGES_ROUTE,
            },
            *(
                {
                    "name": NAME,
                    "href": f"{pages}/of?{query}",
                    "destination": destination,
                    "url_route": f"{settings.PAGES_ROUTE}-{destination.replace('_', '-')}",
                }
                for destination, query in tabs.items()
            ),
        ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the pages; only the API server calls it."""
        if not settings.ui_kafka_config_id():
            return []
        from airflow_eos.ui.app import create_app

        return [{"name": "airflow-eos", "app": create_app(), "url_prefix": settings.PAGES_PREFIX}]
