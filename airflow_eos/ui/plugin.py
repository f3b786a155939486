"""The plugin: a view in Airflow's menu, and the pages behind it.

It is imported by every process of Airflow. What the pages need is imported where the API server mounts them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin
from airflow.providers.common.compat.sdk import conf

from airflow_eos import settings

URL_PREFIX = "/eos"
"""Where the API server mounts the pages."""
URL_ROUTE = "exactly-once"
"""The view's own part of Airflow's addresses: ``/plugin/<route>``."""


def base_path() -> str:
    """Return the path of ``[api] base_url``, without a slash at its end."""
    return urlsplit(str(conf.get("api", "base_url", fallback="") or "")).path.rstrip("/")


class EosPlugin(AirflowPlugin):
    """Off unless ``[eos] ui_kafka_config_id`` names a connection."""

    name = "airflow_eos"

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:
        """Return the entry in the menu *Browse*."""
        if not settings.ui_kafka_config_id():
            return []
        return [
            {
                "name": "Exactly once",
                "href": f"{base_path()}{URL_PREFIX}/",
                "destination": "nav",
                "category": "browse",
                "url_route": URL_ROUTE,
            }
        ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Return the pages; only the API server asks for them."""
        if not settings.ui_kafka_config_id():
            return []
        from airflow_eos.ui.app import create_app

        return [{"name": "airflow-eos", "app": create_app(), "url_prefix": URL_PREFIX}]
