"""Defaults from Airflow's configuration, section ``[eos]``; read when a task runs, never at Dag-parse."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

from airflow_eos.model.spec import LedgerSettings

SECTION = "eos"
DEFAULT_PREFIX = "airflow-eos"
DEFAULT_LEDGER_TOPIC = "airflow-eos-ledger"


def default_prefix() -> str:
    """First part of every transactional id."""
    return str(conf.get(SECTION, "prefix", fallback=DEFAULT_PREFIX))


def default_ledger() -> LedgerSettings:
    """Return the ledger's settings."""
    create = bool(conf.getboolean(SECTION, "create_ledger", fallback=True))
    return LedgerSettings(topic=default_ledger_topic(), create=create)


def default_ledger_topic() -> str:
    """Name of the ledger topic."""
    return str(conf.get(SECTION, "ledger_topic", fallback=DEFAULT_LEDGER_TOPIC))


def ledger_record_url() -> str:
    """Address of a ledger record, with ``{topic}``, ``{key}`` and ``{pipeline}``; empty: no link."""
    return str(conf.get(SECTION, "ledger_record_url", fallback=""))


def spark_history_url() -> str:
    """Address of a Spark application, with ``{application_id}``; empty: its own UI, while it lives."""
    return str(conf.get(SECTION, "spark_history_url", fallback=""))
