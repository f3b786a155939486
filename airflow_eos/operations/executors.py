"""Checks the versions of Spark's executors, and whether credentials travel to them encrypted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_eos.exceptions import EosError
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.spark.address import check_host, shown_address, without_parameters
from airflow_eos.spark.distributions import import_session_class, installed_distributions
from airflow_eos.spark.encryption import ADVICE, local_defaults, settings_in_force, way_in_clear
from airflow_eos.spark.server_wait import wait_for_server
from airflow_eos.wire.client_config import ClientConfig

_PATIENCE = 5.0
"""Seconds for a Spark Connect server to accept a connection."""


def distribution_problems() -> list[Check]:
    """Return a finding if the installed versions of PySpark and its client do not match."""
    installed = installed_distributions()
    if installed.agree:
        return []
    mixed = f"{installed}: their files are mixed in one folder"
    return [Check("Spark packages", "fail", mixed, f"run: {installed.repair}")]


def check_executors(address: str, kafka: ClientConfig, *, encrypted: bool) -> list[Check]:
    """Compare versions in a session on a master or a Spark Connect server, and check the connection to it.

    :param address: ``local[2]``, ``spark://host:7077``, ``sc://host:15002``, ...
    :param encrypted: refuse an unencrypted connection, as ``[eos] require_encrypted_spark`` does.
    """
    checks = _checks(f"executors of {shown_address(address)}", address, kafka, encrypted=encrypted)
    return [replace(check, found=without_parameters(check.found, address)) for check in checks]


def _checks(name: str, address: str, kafka: ClientConfig, *, encrypted: bool) -> list[Check]:
    from airflow_eos.spark.preflight import check_environment

    try:
        SparkSession = import_session_class()  # noqa: N806 - a class
    except EosError as error:
        return [Check(name, "fail", error_line(error))]
    found_session = SparkSession.getActiveSession()
    settings = {"spark.remote" if address.startswith("sc://") else "spark.master": address}
    builder = SparkSession.builder.appName("airflow-eos-doctor")
    builder = builder.config(map={**local_defaults(address), **settings})
    try:
        if address.startswith("sc://"):
            check_host(address)
            wait_for_server(address, _PATIENCE)
        session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - Spark raises anything
        return [Check(name, "fail", f"no session: {error}", "check the address, and that Spark runs there")]
    way: list[Check] = []
    try:
        way = credentials_on_the_way(settings_in_force(session, settings), kafka, encrypted=encrypted)
        environment = check_environment(session)
    except EosError as error:
        return [*way, Check(name, "fail", error_line(error))]
    except Exception as error:  # noqa: BLE001 - the first request to a Spark Connect server
        return [*way, Check(name, "fail", str(error), "check the address, and that Spark runs there")]
    finally:
        if found_session is None:
            session.stop()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(environment.versions.items()))
    return [
        *way,
        Check(name, "ok", f"Spark {environment.spark}, {len(environment.executors)} executors, {versions}"),
    ]


def credentials_on_the_way(
    spark: Mapping[str, str], kafka: ClientConfig, *, encrypted: bool = False
) -> list[Check]:
    """Return a finding about the credentials' encryption on the way to Spark; empty without credentials.

    :param spark: the session's effective settings.
    :param encrypted: whether an unencrypted connection stops runs.
    """
    if not kafka.has_secrets:
        return []
    name, way = "credentials to Spark", way_in_clear(spark)
    if way is None:
        return [Check(name, "ok", "encrypted, or they stay in this process")]
    return [Check(name, "fail" if encrypted else "warn", f"they travel in clear over {way}", ADVICE)]
