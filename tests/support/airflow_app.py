"""Airflow's own API server in this process, with its routes, middlewares and users, and the plugins' apps.

Import it before Airflow.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.airflow_home import HOME  # first of all
from tests.support.patience import wait_until

USERS = "viewer:viewer"
CONNECTION = "eos_page"


@contextmanager
def airflow_app(kafka: Mapping[str, Any], *, ledger: str = "", dags: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield a client of an Airflow whose pages show a ledger.

    :param kafka: client configuration of the pages' connection.
    :param dags: ids of the Dags that Airflow knows.
    """
    settings = {
        f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps({"conn_type": "kafka", "extra": dict(kafka)}),
        "AIRFLOW__EOS__UI_KAFKA_CONFIG_ID": CONNECTION,
        "AIRFLOW__EOS__LEDGER_TOPIC": ledger,
        "AIRFLOW__EOS__PREFIX": "test",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
        "AIRFLOW__API_AUTH__JWT_SECRET": "a-test-s-own-" * 6,
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        from airflow.api_fastapi.app import create_app, purge_cached_app
        from airflow.utils import db
        from fastapi.testclient import TestClient

        _forget_plugins()
        db.initdb()
        _know(dags)
        purge_cached_app()
        with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
            yield client
        purge_cached_app()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _forget_plugins() -> None:
    """Make Airflow reload its plugins: with other settings they have other pages."""
    from airflow import plugins_manager

    if hasattr(plugins_manager, "_get_plugins"):
        plugins_manager._get_plugins.cache_clear()
        plugins_manager.get_fastapi_plugins.cache_clear()
    else:  # 3.1
        plugins_manager.loaded_plugins.clear()
        for name in ("plugins", "fastapi_apps", "fastapi_root_middlewares"):
            setattr(plugins_manager, name, None)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on loopback, for a browser; yield its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        (listening,) = server.servers[0].sockets
        yield "http://{}:{}".format(*listening.getsockname())
    finally:
        server.should_exit = True
        thread.join(30)


def password(name: str) -> str:
    """Return the password that Airflow generated for a user."""
    return str(json.loads((HOME / "simple_auth_manager_passwords.json.generated").read_text())[name])


def token(name: str, role: str | None = "viewer") -> str:
    """Return a token for a user."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    jwt: str = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    return jwt


def _know(dags: tuple[str, ...]) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="pages"))
        session.flush()
        for name in dags:
            session.merge(DagModel(dag_id=name, bundle_name="pages", is_stale=False))
