"""Spark addresses: which parts messages may show (a parameter may be a token), and which are local."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from airflow_eos.exceptions import ConfigurationError

_ADDRESS = re.compile(r"((?:[a-z0-9+.\-]+://)*)(?:([^/;?#]*)@)?([^/;?#]*/?)(.*)", re.IGNORECASE | re.DOTALL)
_SHORTEST = 5
"""Characters: a shorter part, such as "true", would blank out ordinary words."""


def shown_address(address: str) -> str:
    """Return the host and port of an address, or the master, without user and parameters."""
    scheme, _, host, _ = _parts(address)
    return f"{scheme}{host}"


def without_parameters(text: str, address: str) -> str:
    """Return a message without user and parameters of an address, even where it quotes parts of them.

    A mistyped address counts too: everything after host and port is a parameter.
    """
    _, user, _, parameters = _parts(address)
    secrets = {part for whole in (user, parameters) for part in (whole, *re.split(r"[/;?&#]", whole))}
    secrets |= {value for part in secrets for value in re.split(r"[=:\s]", part)}
    # The longest first: a parameter holds its own value. Host names are also quoted in lower case.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = re.sub(re.escape(secret), "...", text, flags=re.IGNORECASE)
    return text


def check_host(address: str) -> None:
    """Refuse a Spark Connect address without a host: the client of Spark 4.0 would try it for ten minutes.

    :raises ConfigurationError: it has none.
    """
    scheme, _, host, _ = _parts(address)
    if scheme.lower() == "sc://" and not host.partition(":")[0].strip("/"):
        raise ConfigurationError(f"{shown_address(address)!r} names no host: give sc://HOST:PORT")


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_on_this_host(remote: str) -> bool:
    """Return whether a Spark Connect address means a server on this machine."""
    return is_loopback(urlsplit(remote).hostname or "")


def _parts(address: str) -> tuple[str, str, str, str]:
    """Return scheme, user, host with port, and parameters."""
    match = _ADDRESS.fullmatch(address)
    scheme, user, host, parameters = match.groups("") if match else ("", "", "", address)
    return scheme, user, host, parameters
