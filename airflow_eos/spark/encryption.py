"""Whether what is sent to Spark can be read on the way: the Kafka credentials are in a run's tasks."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADVICE = (
    "give Spark spark.authenticate and spark.network.crypto.enabled (or spark.ssl.rpc.enabled), Spark "
    "Connect use_ssl=true; docs/security.md says more"
)

_DECIDING = ("spark.master", "spark.authenticate", "spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def settings_in_force(session: SparkSession, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that decide about encryption, as the session has them.

    They may come from ``spark-defaults.conf``, a session that was there before, or a Spark Connect server.

    :param asked: the settings the session was asked for: the address of a server is in them alone.
    """
    found = {name: session.conf.get(name, None) for name in _DECIDING}
    address = {name: value for name, value in asked.items() if name == "spark.remote"}
    return {**address, **{name: value for name, value in found.items() if value is not None}}


def way_in_clear(spark: Mapping[str, str]) -> str | None:
    """Return over what tasks travel unencrypted; None: they are encrypted, or stay on this machine.

    With Spark Connect there are two ways: to the server, and from there to its executors (where the settings
    name the server's master).
    """
    remote = spark.get("spark.remote")
    if remote:
        address = urlsplit(remote)
        given = dict(parameter.partition("=")[::2] for parameter in address.path.strip("/;").split(";"))
        # The client turns TLS on where there is a token.
        encrypted = given.get("use_ssl", "").lower() == "true" or "token" in given
        if not (encrypted or _is_here(address.hostname or "")):
            return f"Spark Connect to {address.hostname}"
    master = spark.get("spark.master", "local")
    if master.startswith("local"):
        return None
    on = {name for name, value in spark.items() if str(value).lower() == "true"}
    if "spark.ssl.rpc.enabled" in on or {"spark.authenticate", "spark.network.crypto.enabled"} <= on:
        return None
    return f"Spark's RPC at {master}"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
