"""Whether what a run sends to Spark can be read on the way: the Kafka credentials are in its tasks."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from airflow_eos import settings
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.client_config import ClientConfig

log = logging.getLogger(__name__)

_ADVICE = (
    "give Spark spark.authenticate and spark.network.crypto.enabled (or spark.ssl.rpc.enabled), Spark "
    "Connect use_ssl=true; docs/security.md says more"
)


def check_encryption(spark: Mapping[str, str], kafka: ClientConfig) -> None:
    """Warn, or refuse where ``[eos] require_encrypted_spark`` says so, where credentials travel in clear.

    :param spark: the session's settings, as far as they are known here.
    :raises ConfigurationError: it is refused.
    """
    way = way_in_clear(spark) if kafka.has_secrets else None
    if way is None:
        return
    message = f"the credentials of the Kafka connection travel in clear over {way}; {_ADVICE}"
    if settings.require_encrypted_spark():
        raise ConfigurationError(f"[eos] require_encrypted_spark is set, and {message}")
    log.warning("%s", message)


def way_in_clear(spark: Mapping[str, str]) -> str | None:
    """Return over what tasks travel unencrypted; None: they are encrypted, or stay on this machine."""
    remote = spark.get("spark.remote")
    if remote:
        address = urlsplit(remote)
        given = dict(one.partition("=")[::2] for one in address.path.strip("/;").split(";"))
        # The client turns TLS on where there is a token.
        if given.get("use_ssl", "").lower() == "true" or "token" in given or _is_here(address.hostname or ""):
            return None
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
