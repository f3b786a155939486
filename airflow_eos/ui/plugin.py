"""The plugin: a view in Airflow's menu, and its pages.

Every process of Airflow imports it; only the API server imports the pages' modules.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_eos import settings
from airflow_eos.operators.failure_record import FailureListener

NAME = "Exactly once"
"""Of the entry in the menu, and of each tab."""


class EosPlugin(AirflowPlugin):
    """The pages; off unless ``[eos] ui_kafka_config_id`` names a connection. Workers need no option."""

    name = "airflow_eos"
    listeners = [FailureListener()]  # noqa: RUF012 - as in the base class

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:
        """Return the entry in the menu *Browse*, and tabs of Dags, their runs and task instances.

        Airflow fills names into the addresses of tabs. It cannot leave out a tab of a Dag without pipelines:
        the page says so.
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
