"""One client configuration, in librdkafka's names.

An Airflow connection of type ``kafka`` holds librdkafka settings. The control plane passes them to
confluent-kafka, the data plane to kafka-python, so that one connection configures both clients::

    config = ClientConfig.of({"bootstrap.servers": "broker:9093", "security.protocol": "SSL", ...})
    broker.librdkafka.base_settings(config)              # dict for confluent_kafka.Producer
    wire.kafka_python_config.for_kafka_python(config)    # dict for kafka.net's KafkaConnectionManager

Settings: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.recordbatch.limits import (
    DEFAULT_LIMITS,
    MAX_BYTES_SETTING,
    MAX_HEADERS_SETTING,
    DecodeLimits,
)

CLUSTER_SETTING = "eos.cluster.id"
"""Id of the cluster of the bootstrap servers: the driver passes its own to the executors."""
OUR_SETTINGS = frozenset({CLUSTER_SETTING, MAX_BYTES_SETTING, MAX_HEADERS_SETTING})
"""Settings of this package, unknown to the client libraries."""

_ALIASES = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}

_SECRET_PARTS = (
    "password",
    "secret",
    "passphrase",
    "token",
    "private.key",
    "key.pem",
    "jaas",
    "oauthbearer.config",
    "oauth_cb",
    "basic.auth",
)

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
        shown = ", ".join(f"{k}={'***' if is_secret(k) else repr(v)}" for k, v in self.items)
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
            read_int(MAX_BYTES_SETTING, self.get(MAX_BYTES_SETTING, DEFAULT_LIMITS.max_bytes)),
            read_int(MAX_HEADERS_SETTING, self.get(MAX_HEADERS_SETTING, DEFAULT_LIMITS.max_record_headers)),
        )

    @property
    def has_secrets(self) -> bool:
        """Whether the configuration contains credentials."""
        return any(is_secret(key) for key in self)

    @property
    def security_protocol(self) -> str:
        """``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.

        :raises ConfigurationError: the setting is another text.
        """
        protocol = str(self.get("security.protocol", "plaintext")).upper()
        if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ConfigurationError(
                f"client setting 'security.protocol' is {protocol!r}; "
                "use one of plaintext, ssl, sasl_plaintext, sasl_ssl"
            )
        return protocol


def is_secret(key: str) -> bool:
    """Return whether a setting is, or may contain, a credential."""
    return any(part in key for part in _SECRET_PARTS)


def _servers(value: Any) -> tuple[str, ...]:
    entries = value.split(",") if isinstance(value, str) else list(value or ())
    return tuple(str(entry).strip() for entry in entries if str(entry).strip())


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


def import_callable(key: str, dotted: str) -> Any:
    """Return the callable that a setting names, as ``module.name`` or ``module:name``.

    :raises ConfigurationError: names the setting.
    """
    # Not pkgutil.resolve_name: it prefers a submodule to a function of its name, and hides failing imports.
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
