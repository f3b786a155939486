"""Waits for a Spark Connect server: Spark's own client retries for ten minutes without logging."""

from __future__ import annotations

import logging
import os
import socket
import time
from urllib.parse import urlsplit

from airflow_eos.exceptions import SparkUnavailable
from airflow_eos.spark.address import is_loopback

log = logging.getLogger(__name__)

_POLL = 0.5
_LOG_AFTER, _LOG_EVERY = 5.0, 30.0
_CONNECT_TIMEOUT = 5.0
_DEFAULT_PORT = 15_002
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables by which gRPC connects to another address."""


def wait_for_server(remote: str, patience: float) -> None:
    """Wait until a Spark Connect server, which may be restarting, accepts connections; log while waiting.

    :param remote: ``sc://host:port/;...``, with a host.
    :param patience: seconds.
    :raises SparkUnavailable: no connection was accepted.
    """
    address = urlsplit(remote)
    try:
        host, port = address.hostname or "", address.port or _DEFAULT_PORT
    except ValueError:  # Spark raises for it
        return
    is_local = is_loopback(host)
    if not is_local and any(map(os.environ.get, _PROXIES)):
        return
    began = time.monotonic()
    deadline, next_line = began + patience, began + _LOG_AFTER
    while True:
        try:
            with socket.create_connection((host, port), _CONNECT_TIMEOUT):
                return
        except OSError as error:
            now = time.monotonic()
            if now > deadline:
                advice = (
                    "start it with `airflow eos spark-server`, or see the log of the service that runs it"
                    if is_local
                    else "check the address, and that the server runs"
                )
                raise SparkUnavailable(
                    f"no Spark Connect server at {host}:{port} in {patience:g} s: {error}; {advice}"
                ) from error
            if now >= next_line:
                next_line = now + _LOG_EVERY
                log.warning(
                    "No Spark Connect server accepts connections at %s:%d: %s; waiting %.0f s more",
                    host,
                    port,
                    error,
                    deadline - now,
                )
        time.sleep(_POLL)
