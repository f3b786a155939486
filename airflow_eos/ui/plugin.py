"""The plugin: a view in Airflow's menu, and the pages behind it.

It is imported by every process of Airflow. What the pages need is imported where the API server mounts them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_eos import settings
from airflow_eos.operators.failure_listener import FailureListener


class EosPlugin(AirflowPlugin):
    """The pages are off unless ``[eos] ui_kafka_config_id`` names a connection; workers need no option."""

    name = "airflow_eos"
    listeners = [FailureListener()]  # noqa: RUF012 - as in the base class

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:
        """Return the entry in the menu *Browse*."""
        if not settings.ui_kafka_config_id():
            return []
        return [
            {
                "name": "Exactly once",
                "href": f"{settings.base_path()}{settings.PAGES_PREFIX}/",
                "destination": "nav",
                "category": "browse",
                "url_route": settings.PAGES_ROUTE,
            }
        ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the pages; only the API server asks for them."""
        if not settings.ui_kafka_config_id():
            return []
        from airflow_eos.ui.app import create_app

        return [{"name": "airflow-eos", "app": create_app(), "url_prefix": settings.PAGES_PREFIX}]
