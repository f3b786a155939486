"""The pages' plugin: light, off by default, and in Airflow's menu."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_eos.links.run_links import LedgerRecordLink
from airflow_eos.ui.plugin import EosPlugin
from tests.unit.airflow.fakes import a_record

ASKED = "import os; os.environ['AIRFLOW__EOS__UI_KAFKA_CONFIG_ID'] = 'eos_page'; "
FIND = "from airflow_eos.ui.plugin import EosPlugin; "


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EosPlugin]:
    def with_settings(connection: str = "eos_page", base_url: str = "") -> EosPlugin:
        monkeypatch.setenv("AIRFLOW__EOS__UI_KAFKA_CONFIG_ID", connection)
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
        return EosPlugin()

    return with_settings


@pytest.mark.parametrize("connection", ["", "  "])
def test_without_a_connection_there_is_no_page(plugin: Callable[..., EosPlugin], connection: str) -> None:
    """It is neither in the menu nor at an address."""
    assert plugin(connection).external_views == plugin(connection).fastapi_apps == []


@pytest.mark.parametrize(
    ("base_url", "href"),
    [
        ("", "/eos/"),
        ("https://airflow.example.com", "/eos/"),
        ("https://example.com/air/flow/", "/air/flow/eos/"),
    ],
)
def test_the_view_is_in_the_menu_below_airflows_own_path(
    plugin: Callable[..., EosPlugin], base_url: str, href: str
) -> None:
    """It is a frame in Airflow's page, with its own address."""
    view, *tabs = plugin(base_url=base_url).external_views
    assert all(tab["href"].startswith(f"{href}of?dag_id={{DAG_ID}}") for tab in tabs)
    assert view == {
        "name": "Exactly once",
        "href": href,
        "destination": "nav",
        "category": "browse",
        "url_route": "exactly-once",
    }


def test_tabs_of_dags_runs_and_task_instances_lead_here(plugin: Callable[..., EosPlugin]) -> None:
    """Workers need no option for it: only the API server uses them. Airflow validates the views."""
    from airflow import plugins_manager
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    eos_plugin = plugin()
    views = eos_plugin.external_views
    assert [view["destination"] for view in views] == ["nav", "dag", "dag_run", "task_instance"]
    assert len({view["url_route"] for view in views}) == 4
    for view in views:
        assert ExternalViewResponse(**view).href == view["href"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plugins_manager, "_get_plugins", lambda: ([eos_plugin], {}))
        plugins_manager._get_ui_plugins.cache_clear()
        assert plugins_manager._get_ui_plugins()[0] == views
    plugins_manager._get_ui_plugins.cache_clear()


def test_the_pages_are_mounted_at_eos(plugin: Callable[..., EosPlugin]) -> None:
    """They have no schema and no docs: nothing answers without a login."""
    (app,) = plugin().fastapi_apps
    assert app["url_prefix"] == "/eos"
    routes: dict[str, Any] = {route.path: route for route in app["app"].routes}
    assert {"/", "/pipeline", "/run", "/transactions", "/health", "/api/v1/verify"} <= set(routes)
    assert not {"/docs", "/redoc", "/openapi.json"}.intersection(routes)
    assert app["app"].router.dependencies


def test_the_link_of_a_task_leads_to_its_runs_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another address for records is configured; empty without pages."""
    record = a_record()
    operator = SimpleNamespace(run_record=record, ledger=None)
    link = LedgerRecordLink()
    assert link.get_link(operator, ti_key=None) == ""
    monkeypatch.setenv("AIRFLOW__EOS__UI_KAFKA_CONFIG_ID", "eos_page")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/air")
    url = urlsplit(link.get_link(operator, ti_key=None))
    assert (url.netloc, url.path) == ("", "/air/plugin/exactly-once/eos/run")
    assert parse_qs(url.query) == {"pipeline": [record.pipeline], "key": [record.run_key]}
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_RECORD_URL", "https://kafka-ui/{topic}")
    assert link.get_link(operator, ti_key=None) == "https://kafka-ui/airflow-eos-ledger"
