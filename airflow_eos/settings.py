"""Defaults from Airflow's configuration, section ``[eos]``; read when a task runs, never at Dag-parse."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from airflow.sdk.log import mask_secret

from airflow_eos.compat import AirflowConfigException, conf, with_options_of_providers
from airflow_eos.model.names import checked_prefix
from airflow_eos.model.signature import LedgerKey
from airflow_eos.model.spec import DEFAULT_PREFIX, LedgerSettings

SECTION = "eos"
DEFAULT_LEDGER_TOPIC = "airflow-eos-ledger"
PAGES_PREFIX = "/eos"
"""Where the API server mounts the pages."""
PAGES_ROUTE = "exactly-once"
"""The part of Airflow's addresses that shows them in a frame: ``/plugin/<route>``."""


def default_prefix() -> str:
    """Return the first part of every transactional id; raises ConfigurationError if it has a dot."""
    return checked_prefix(str(conf.get(SECTION, "prefix", fallback=DEFAULT_PREFIX)))


def origin() -> str:
    """Return this Airflow's name in records: ``[eos] origin``, or its public address; empty if it has none.

    It must be the same in every process of a deployment, and contain no secret: the address is used without
    scheme, user and query.
    """
    given = str(conf.get(SECTION, "origin", fallback="") or "").strip()
    return given or _public_address(str(conf.get("api", "base_url", fallback="") or ""))


def _public_address(url: str) -> str:
    """Return host, port and path; empty for an address of the machine itself, such as localhost."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if not host or _means_itself(host):
        return ""
    return f"{host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _means_itself(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def default_ledger() -> LedgerSettings:
    """Return the ledger's settings."""
    create = bool(conf.getboolean(SECTION, "create_ledger", fallback=True))
    return LedgerSettings(topic=default_ledger_topic(), create=create, key=ledger_key())


def ledger_to_ask(topic: str) -> LedgerSettings:
    """Return the settings of a ledger that is only read."""
    return LedgerSettings(topic=topic, create=False, key=ledger_key())


def with_key(ledger: LedgerSettings) -> LedgerSettings:
    """Return a Dag author's settings, with the configured key if they have none."""
    return ledger if ledger.key else replace(ledger, key=ledger_key())


@with_options_of_providers
def ledger_key() -> str:
    """Return the secrets that sign the ledger's records; empty if there are none. They are masked in logs.

    :raises ConfigurationError: a secret is too short to be one.
    :raises AirflowConfigException: the secrets backend has none now: without it, any record would count.
    """
    secrets = str(conf.get(SECTION, "ledger_key", fallback="") or "").strip()
    name = "" if secrets else conf.get(SECTION, "ledger_key_secret", fallback="")
    if name:
        raise AirflowConfigException(f"[eos] ledger_key_secret: no secrets backend returns {name!r}")
    LedgerKey(secrets)
    for secret in (secrets, *secrets.split()):
        if secret:
            mask_secret(secret)
    return secrets


def default_ledger_topic() -> str:
    """Return the name of the ledger topic."""
    return str(conf.get(SECTION, "ledger_topic", fallback=DEFAULT_LEDGER_TOPIC))


def class_data_folder() -> Path:
    """Return the folder of the class-data archives of ``airflow eos warm-spark``."""
    given = str(conf.get(SECTION, "class_data_folder", fallback="") or "")
    return Path(given).expanduser() if given else _home() / "eos-class-data"


def writes_class_data() -> bool:
    """Return whether a task that started Spark without class data writes them for the next tasks."""
    return bool(conf.getboolean(SECTION, "write_class_data", fallback=True))


def spark_server_folder() -> Path:
    """Return the folder of ``airflow eos spark-server``, unless the command names another one."""
    return _home() / "eos-spark-server"


def _home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()


def require_encrypted_spark() -> bool:
    """Return whether runs are refused whose credentials would travel to Spark in clear."""
    return bool(conf.getboolean(SECTION, "require_encrypted_spark", fallback=False))


def ledger_record_url() -> str:
    """Return the URL of a ledger record, with ``{topic}``, ``{key}``, ``{pipeline}``; empty: own pages."""
    return str(conf.get(SECTION, "ledger_record_url", fallback=""))


def ui_kafka_config_id() -> str:
    """Return the Kafka connection of the pages in Airflow; empty if there are no pages."""
    return str(conf.get(SECTION, "ui_kafka_config_id", fallback="") or "").strip()


def base_path() -> str:
    """Return the path of Airflow's own address, without a slash at its end."""
    return urlsplit(str(conf.get("api", "base_url", fallback="") or "")).path.rstrip("/")


def run_page(pipeline: str, run_key: str) -> str:
    """Return the path of a run's page in Airflow; empty if there are no pages."""
    if not ui_kafka_config_id():
        return ""
    query = urlencode({"pipeline": pipeline, "key": run_key})
    return f"{base_path()}/plugin/{PAGES_ROUTE}{PAGES_PREFIX}/run?{query}"


def spark_history_url() -> str:
    """Return the URL template of a Spark application (``{application_id}``); empty: its own UI."""
    return str(conf.get(SECTION, "spark_history_url", fallback=""))
