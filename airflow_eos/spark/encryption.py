"""Encryption of the traffic with Spark: the tasks of a run contain the Kafka credentials.

Spark's RPC and its block manager listen on ports, even with a local master, and accept any client unless
``spark.authenticate`` is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_eos.spark.address import is_loopback
from airflow_eos.spark.local_python import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADVICE = (
    "give Spark spark.authenticate and spark.network.crypto.enabled (or spark.ssl.rpc.enabled), Spark "
    "Connect use_ssl=true; docs/security.md says more"
)

LOOPBACK = "127.0.0.1"

_LOCAL_DEFAULTS = {
    # Spark generates the secret of a local master, and keeps it in memory.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # The UI has no authentication, and listens on every address.
    "spark.ui.enabled": "false",
}

# With the usual umask every user can read the block manager's folders.
_ENCRYPTED_FILES = {"spark.io.encryption.enabled": "true"}

_DECIDING = ("spark.master", "spark.authenticate", "spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def local_defaults(master: str, *, private_folders: bool = False) -> dict[str, str]:
    """Return settings that keep other users and machines out of a driver with a local master.

    They are defaults: settings of an author or a connection take precedence. Empty for any other master:
    executors must reach their driver, and a cluster has its own secret.

    :param private_folders: whether only this user can read the block folders of the session, as with
        :class:`airflow_eos.spark_host.local_session.LocalSession`; otherwise their files are encrypted.
    """
    if not is_local(master):
        return {}
    return _LOCAL_DEFAULTS | ({} if private_folders else _ENCRYPTED_FILES)


def server_defaults(master: str) -> dict[str, str]:
    """Return :func:`local_defaults` for a Spark Connect server, without encryption of the RPC.

    With it the server deadlocks: its executor downloads classes of a session over RPC while it holds the lock
    of the class loader, and the handshake of the encrypted connection loads a class by that loader. Loopback
    and authentication (SASL) protect the server instead.
    """
    return local_defaults(master) | ({"spark.network.crypto.enabled": "false"} if is_local(master) else {})


def settings_in_force(session: SparkSession, requested: Mapping[str, str]) -> dict[str, str]:
    """Return the session's encryption settings, including those of ``spark-defaults.conf`` or a server.

    :param requested: the requested settings; they alone contain the address of a server.
    """
    in_force = {name: session.conf.get(name, None) for name in _DECIDING}
    address = {name: value for name, value in requested.items() if name == "spark.remote"}
    return {**address, **{name: value for name, value in in_force.items() if value is not None}}


def way_in_clear(spark: Mapping[str, str]) -> str | None:
    """Return the unencrypted connection over which others can read tasks; None if there is none.

    Spark Connect has two connections: to the server, and from there to its executors (if the settings name
    the server's master).
    """
    remote = spark.get("spark.remote")
    if remote:
        address = urlsplit(remote)
        given = dict(parameter.partition("=")[::2] for parameter in address.path.strip("/;").split(";"))
        # The client turns TLS on where there is a token.
        encrypted = given.get("use_ssl", "").lower() == "true" or "token" in given
        if not (encrypted or is_loopback(address.hostname or "")):
            return f"Spark Connect to {address.hostname}"
    master = spark.get("spark.master")
    if master is None:
        return None
    on = {name for name, value in spark.items() if str(value).lower() == "true"}
    if master.startswith("local"):
        # Nothing is sent to another machine, but both ports answer who can reach them.
        return None if "spark.authenticate" in on else f"Spark's RPC at {master}, without spark.authenticate"
    if "spark.ssl.rpc.enabled" in on or {"spark.authenticate", "spark.network.crypto.enabled"} <= on:
        return None
    return f"Spark's RPC at {master}"
