"""Translates a client configuration to kafka-python's keyword arguments.

A key is translated, or listed in :data:`IGNORED` with the reason why the wire layer does not need it, or
refused with an error that names it (:class:`~airflow_eos.exceptions.UntranslatableConfig`). No key is dropped
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_eos.exceptions import ConfigurationError, UntranslatableConfig
from airflow_eos.wire.client_config import OUR_SETTINGS, ClientConfig, import_callable, read_bool, read_int
from airflow_eos.wire.ignored_settings import HINTS, IGNORED

_MAX_PORT = 65_535


def for_kafka_python(config: ClientConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of ``kafka.net.manager.KafkaConnectionManager``.

    :raises UntranslatableConfig: names the key and what to use instead.
    :raises ConfigurationError: a value is invalid, or a certificate file cannot be read.
    """
    frozen = ClientConfig.of(config)
    out = _translate(frozen)
    if frozen.security_protocol.endswith("SSL"):
        from airflow_eos.wire.security import ssl_context

        out["ssl_context"] = ssl_context(frozen)
    if "oauth_cb" in frozen:
        from airflow_eos.wire.security import CallbackTokens

        callback = frozen["oauth_cb"]
        if isinstance(callback, str):
            callback = import_callable("oauth_cb", callback)
        argument = str(frozen.get("sasl.oauthbearer.config", ""))
        out["sasl_oauth_token_provider"] = CallbackTokens(callback, argument)
    return out


def _translate(config: ClientConfig) -> dict[str, Any]:
    """Translate every key except certificates and callbacks."""
    _check_addresses(config.bootstrap_servers)
    out: dict[str, Any] = {"bootstrap_servers": list(config.bootstrap_servers)}
    _ = config.decode_limits  # validates these two settings together with all others
    out["security_protocol"] = config.security_protocol
    for key, value in config.items:
        if key in _PLAIN:
            name, read = _PLAIN[key]
            out[name] = read(key, value)
        elif key not in _HANDLED_ELSEWHERE | OUR_SETTINGS and key not in IGNORED:
            raise _untranslatable(key)
    if str(config.get("broker.address.family", "any")) != "any":
        raise _untranslatable("broker.address.family")
    if str(config.get("sasl.oauthbearer.method", "default")) != "default":
        raise _untranslatable("sasl.oauthbearer.method")
    if out["security_protocol"].startswith("SASL_"):
        out["sasl_mechanism"] = _mechanism(config)
        if out["sasl_mechanism"].startswith("SCRAM-"):
            # kafka-python does not escape these two characters (RFC 5802, section 5.1).
            name = out["sasl_plain_username"]
            out["sasl_plain_username"] = name.replace("=", "=3D").replace(",", "=2C")
    options = _socket_options(config)
    if options is not None:
        out["socket_options"] = options
    return out


def _untranslatable(key: str) -> UntranslatableConfig:
    hint = HINTS.get(key, "remove it from the connection, or use a separate connection without it")
    return UntranslatableConfig(f"client setting {key!r} has no counterpart in the wire layer: {hint}")


def _check_addresses(servers: Sequence[str]) -> None:
    from kafka.cluster import collect_hosts

    for server in servers:
        with suppress(ValueError):
            host, port, _ = collect_hosts([server], randomize=False)[0]
            if host and 0 < port <= _MAX_PORT:
                continue
        raise ConfigurationError(
            f"{server!r} in client setting 'bootstrap.servers' is not an address; use HOST:PORT, "
            "several with commas"
        )


def _mechanism(config: ClientConfig) -> str:
    # GSSAPI is librdkafka's default.
    mechanism = str(config.get("sasl.mechanisms", "GSSAPI")).strip().upper()
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"):
        raise ConfigurationError(
            f"client setting 'sasl.mechanisms' is {mechanism!r}; "
            "use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI, OAUTHBEARER"
        )
    needed = {"OAUTHBEARER": ("oauth_cb",), "GSSAPI": ()}.get(mechanism, ("sasl.username", "sasl.password"))
    for key in needed:
        if key not in config:
            raise ConfigurationError(
                f"client setting {key!r} is missing; sasl.mechanisms={mechanism} needs it"
            )
    return mechanism


def _socket_options(config: ClientConfig) -> list[tuple[int, int, int]] | None:
    if not any(key in config for key in _SOCKET_KEYS):
        return None
    keep_alive, no_delay, received, sent = _SOCKET_KEYS
    import socket

    # kafka-python enables both by default. librdkafka disables keep-alive by default; that default is not
    # kept.
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, int(read_bool(no_delay, config.get(no_delay, True)))),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(read_bool(keep_alive, config.get(keep_alive, True)))),
    ]
    for key, option in ((received, socket.SO_RCVBUF), (sent, socket.SO_SNDBUF)):
        size = read_int(key, config.get(key, 0))
        if size > 0:
            options.append((socket.SOL_SOCKET, option, size))
    return options


def _read_text(_key: str, value: Any) -> str:
    return str(value)


def _read_dns_lookup(key: str, value: Any) -> str:
    if value not in ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"):
        raise ConfigurationError(
            f"client setting {key!r} must be 'use_all_dns_ips' or "
            f"'resolve_canonical_bootstrap_servers_only', got {value!r}"
        )
    return str(value)


def _read_idle(key: str, value: Any) -> int:
    # In librdkafka 0 means "never"; kafka-python has no such value, so use a week.
    return read_int(key, value) or 7 * 24 * 3600 * 1000


_PLAIN: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "client.dns.lookup": ("client_dns_lookup", _read_dns_lookup),
    "client.id": ("client_id", _read_text),
    "connections.max.idle.ms": ("connections_max_idle_ms", _read_idle),
    "metadata.max.age.ms": ("metadata_max_age_ms", read_int),
    "receive.message.max.bytes": ("receive_message_max_bytes", read_int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", read_int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", read_int),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", _read_text),
    "sasl.password": ("sasl_plain_password", _read_text),
    "sasl.username": ("sasl_plain_username", _read_text),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", read_int),
    "socket.timeout.ms": ("request_timeout_ms", read_int),
}

_SOCKET_KEYS = (
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
)
_HANDLED_ELSEWHERE = frozenset(
    {
        *_SOCKET_KEYS,
        "bootstrap.servers",
        "broker.address.family",
        "enable.ssl.certificate.verification",
        "oauth_cb",
        "sasl.mechanisms",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.method",
        "security.protocol",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
    }
)
