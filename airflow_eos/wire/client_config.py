"""One client configuration in librdkafka's names, and its translation to kafka-python.

An Airflow connection of type ``kafka`` holds librdkafka settings. The control plane passes them to
confluent-kafka, the data plane to kafka-python, so that one connection configures both clients::

    config = ClientConfig.of({"bootstrap.servers": "broker:9093", "security.protocol": "SSL", ...})
    for_librdkafka(config)      # dict for confluent_kafka.Producer/Consumer/AdminClient
    for_kafka_python(config)    # dict for kafka.net's KafkaConnectionManager

A key is translated, or listed in :data:`IGNORED` with the reason why the wire layer does not need it, or
refused with an error that names it (:class:`~airflow_eos.exceptions.UntranslatableConfig`). No key is dropped
silently.
Settings: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import ConfigurationError, UntranslatableConfig
from airflow_eos.recordbatch.limits import MAX_BYTES_SETTING, MAX_HEADERS_SETTING, DecodeLimits
from airflow_eos.wire.ignored_settings import HINTS, IGNORED, OWNED_BY_PACKAGE

OUR_SETTINGS = frozenset({MAX_BYTES_SETTING, MAX_HEADERS_SETTING})
"""Settings of this package, unknown to the client libraries."""

_ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}

_SECRET_PARTS = (
    "password",
    "secret",
    "token",
    "jaas",
    "ssl.key.pem",
    "oauthbearer.config",
    "oauth_cb",
    "basic.auth",
)

_MAX_PORT = 65_535
_INT32 = 2**31 - 1
_BOUNDS = {
    "connections.max.idle.ms": (0, _INT32),
    "metadata.max.age.ms": (1, 86_400_000),
    "receive.message.max.bytes": (1_000, _INT32),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "socket.connection.setup.timeout.ms": (1_000, _INT32),
    "socket.receive.buffer.bytes": (0, 100_000_000),
    "socket.send.buffer.bytes": (0, 100_000_000),
    "socket.timeout.ms": (10, 300_000),
}

_PLAIN: dict[str, tuple[str, Callable[[str, Any], Any]]] = {}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A frozen librdkafka configuration whose ``repr`` hides secrets.

    It can be pickled if its values can. A callable ``oauth_cb`` must be importable in the process that loads
    the pickle; otherwise pass its dotted name.

    :param items: sorted pairs of setting and value; use :meth:`of`.
    """

    items: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any] | ClientConfig) -> ClientConfig:
        """Freeze settings; replaces aliases by the main name and drops empty values (None, "").

        :raises ConfigurationError: ``bootstrap.servers`` is missing, or a setting and its alias have
            different values.
        """
        if isinstance(settings, ClientConfig):
            return settings
        values: dict[str, Any] = {}
        for given, value in settings.items():
            key = _ALIASES.get(given, given)
            if value is None or value == "":
                continue
            if key in values and values[key] != value:
                raise ConfigurationError(
                    f"client setting {given!r} and its other name disagree; keep {key!r}"
                )
            values[key] = value
        servers = values.get("bootstrap.servers", "")
        listed = servers if isinstance(servers, (list, tuple)) else [servers]
        if not all(isinstance(server, str) for server in listed):
            raise ConfigurationError(
                f"client setting 'bootstrap.servers' must be text, such as 'host:9092', got {servers!r}"
            )
        if not _servers(servers):
            raise ConfigurationError(
                "client setting 'bootstrap.servers' is missing; put it into the extra of the kafka connection"
            )
        return cls(tuple(sorted(values.items())))

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={'***' if _is_secret(k) else repr(v)}" for k, v in self.items)
        return f"ClientConfig({shown})"

    def __getitem__(self, key: str) -> Any:
        return dict(self.items)[key]

    def __contains__(self, key: object) -> bool:
        return any(k == key for k, _ in self.items)

    def __iter__(self) -> Iterator[str]:
        return (k for k, _ in self.items)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, or the default."""
        return dict(self.items).get(key, default)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, secrets included."""
        return dict(self.items)

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """``host:port`` entries."""
        return _servers(self.get("bootstrap.servers"))

    @property
    def first_server(self) -> str:
        """Host and port of the first bootstrap server, without a protocol; Kafka's port if it has none."""
        from kafka.cluster import collect_hosts

        host, port, _ = collect_hosts(self.bootstrap_servers[:1], randomize=False)[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def decode_limits(self) -> DecodeLimits:
        """Limits for decoding a record batch: ``eos.max.batch.bytes``, ``eos.max.record.headers``.

        :raises ConfigurationError: a value is not a positive int32.
        """
        return DecodeLimits(
            **{
                name: read_int(key, self[key])
                for name, key in (
                    ("max_bytes", MAX_BYTES_SETTING),
                    ("max_record_headers", MAX_HEADERS_SETTING),
                )
                if key in self
            }
        )

    @property
    def has_secrets(self) -> bool:
        """Whether the configuration contains credentials."""
        return any(_is_secret(key) for key in self)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return _protocol(self) in ("SSL", "SASL_SSL")


def for_librdkafka(config: ClientConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a confluent-kafka client, without those that this package sets itself."""
    settings = {k: v for k, v in ClientConfig.of(config).items if k not in (OWNED_BY_PACKAGE | OUR_SETTINGS)}
    if isinstance(settings.get("oauth_cb"), str):
        settings["oauth_cb"] = _imported("oauth_cb", settings["oauth_cb"])
    return settings


def for_kafka_python(config: ClientConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of ``kafka.net.manager.KafkaConnectionManager``.

    :raises UntranslatableConfig: names the key and what to use instead.
    :raises ConfigurationError: a value is invalid, or a certificate file cannot be read.
    """
    frozen = ClientConfig.of(config)
    out = _translate(frozen)
    if frozen.uses_tls:
        from airflow_eos.wire.security import ssl_context

        out["ssl_context"] = ssl_context(frozen)
    if "oauth_cb" in frozen:
        from airflow_eos.wire.security import token_provider

        callback = frozen["oauth_cb"]
        if isinstance(callback, str):
            callback = _imported("oauth_cb", callback)
        out["sasl_oauth_token_provider"] = token_provider(
            callback, str(frozen.get("sasl.oauthbearer.config", ""))
        )
    return out


def _translate(config: ClientConfig) -> dict[str, Any]:
    """Translate every key except certificates and callbacks."""
    _check_addresses(config.bootstrap_servers)
    out: dict[str, Any] = {"bootstrap_servers": list(config.bootstrap_servers)}
    _ = config.decode_limits  # validates these two settings together with all others
    out["security_protocol"] = _protocol(config)
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


def _is_secret(key: str) -> bool:
    return any(part in key for part in _SECRET_PARTS)


def _servers(value: Any) -> tuple[str, ...]:
    entries = value.split(",") if isinstance(value, str) else list(value or ())
    return tuple(str(entry).strip() for entry in entries if str(entry).strip())


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


def _protocol(config: ClientConfig) -> str:
    protocol = str(config.get("security.protocol", "plaintext")).upper()
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError(
            f"client setting 'security.protocol' is {protocol!r}; "
            "use one of plaintext, ssl, sasl_plaintext, sasl_ssl"
        )
    return protocol


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
    keys = (
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    )
    if not any(key in config for key in keys):
        return None
    import socket

    # kafka-python enables both by default. librdkafka disables keep-alive by default; that default is not
    # kept.
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, int(read_bool(keys[1], config.get(keys[1], True)))),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(read_bool(keys[0], config.get(keys[0], True)))),
    ]
    for key, option in ((keys[2], socket.SO_RCVBUF), (keys[3], socket.SO_SNDBUF)):
        size = read_int(key, config.get(key, 0))
        if size > 0:
            options.append((socket.SOL_SOCKET, option, size))
    return options


def read_bool(key: str, value: Any) -> bool:
    """Read a boolean as librdkafka does: true/t/1/yes and their opposites, in any case."""
    text = str(value).strip().lower()
    if text in ("true", "t", "1", "yes", "on"):
        return True
    if text in ("false", "f", "0", "no", "off"):
        return False
    raise ConfigurationError(f"client setting {key!r} must be true or false, got {value!r}")


def read_int(key: str, value: Any) -> int:
    """Read an integer within the bounds that librdkafka has for the setting.

    :raises ConfigurationError: names the setting and its bounds.
    """
    lowest, highest = _BOUNDS.get(key, (1, _INT32))
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = lowest - 1
    if not lowest <= number <= highest:
        raise ConfigurationError(
            f"client setting {key!r} is {value!r}; it must be from {lowest} to {highest}"
        )
    return number


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


def _imported(key: str, dotted: str) -> Any:
    module, _, name = dotted.replace(":", ".").rpartition(".")
    try:
        imported = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"client setting {key!r} names {dotted!r}, which cannot be imported"
        ) from error
    if not callable(imported):
        raise ConfigurationError(f"client setting {key!r} names {dotted!r}, which is not callable")
    return imported


_PLAIN.update(
    {
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
)

_HANDLED_ELSEWHERE = frozenset(
    {
        "bootstrap.servers",
        "broker.address.family",
        "enable.ssl.certificate.verification",
        "oauth_cb",
        "sasl.mechanisms",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.method",
        "security.protocol",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
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
