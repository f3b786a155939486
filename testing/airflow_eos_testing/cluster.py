"""A real Kafka cluster of one or three brokers on loopback, for the duration of a ``with`` block."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing import access, topics
from airflow_eos_testing.broker import START_TIMEOUT, Broker
from airflow_eos_testing.certificates import Certificates, make_certificates
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.launch import Launcher
from airflow_eos_testing.ports import HOST, free_ports, is_free
from airflow_eos_testing.properties import (
    NodePorts,
    default_transaction_version,
    formatting_features,
    server_properties,
    version_settings,
)
from airflow_eos_testing.security import SUPER_USER, Security, SecurityProtocol
from airflow_eos_testing.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

log = logging.getLogger(__name__)

DEFAULT_VERSION = "4.3.1"
VERSION_VARIABLE = "EOS_KAFKA_VERSION"
"""Environment variable with the default broker version: runs the tests with another Kafka."""
_PORT_ATTEMPTS = 3
_LOGIN_TIMEOUT = 30.0


class EmbeddedKafka:
    """Run a real Kafka cluster (KRaft, combined mode) and remove every trace of it afterwards.

    Guarantee: inside the ``with`` block the cluster answers on :attr:`bootstrap_servers`; after it no
    process and no file is left, also when this process is killed. Ports are free ones on loopback.

    Limits: one machine, a single trusted user; ``kill()`` keeps the page cache, so power loss is not covered.

    :param brokers: 1 or 3. With 3, topics have replication factor 3 and ``min.insync.replicas`` 2.
    :param version: Kafka version; tested with 3.9.2, 4.3.1 and 4.4.0. By default ``EOS_KAFKA_VERSION`` of the
        environment, else 4.3.1.
    :param security: protocol of the client listener; with SASL (SCRAM-SHA-512) :meth:`client_config` is for
        a super user and :meth:`user` creates others.
    :param acls: clients may only do what :meth:`grant` allows; requires a SASL protocol.
    :param broker_config: ``server.properties`` entries that override the defaults.
    :param transaction_version: the broker feature ``transaction.version`` (KIP-890): by default 2 on 4.x and
        1 on 3.9, where it needs ``unstable.feature.versions.enable``, which is then set. Before 3.8 the
        feature does not exist.
    :param jvm_options: options of each broker's JVM; the default ones start fast and optimise little.
    :param port: client port of the first broker, for an address that outlives it; default: a free one.
    :param keep: keep the folder with logs and data after the end, and log its path.
    :param start_timeout: seconds for all brokers to be ready.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str | None = None,
        security: SecurityProtocol = "PLAINTEXT",
        *,
        acls: bool = False,
        broker_config: Mapping[str, Any] | None = None,
        transaction_version: int | None = None,
        jvm_options: Sequence[str] | None = None,
        port: int | None = None,
        keep: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        if brokers not in (1, 3):
            raise ConfigurationError(f"brokers={brokers}: an embedded cluster has 1 or 3 brokers")
        version = version or os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION
        if transaction_version is None:
            transaction_version = default_transaction_version(version)
        self._features = formatting_features(version, transaction_version)
        self.version = version
        self.security = Security(security, acls)
        self.transaction_version = transaction_version
        self.keep = keep
        self._port = port
        self._count = brokers
        self._broker_config = {key: str(value) for key, value in (broker_config or {}).items()}
        self._jvm_options = jvm_options
        self._start_timeout = start_timeout
        self._owner = 0
        self._home: Path | None = None
        self._watchdog: Watchdog | None = None
        self._launcher: Launcher | None = None
        self._certificates: Certificates | None = None
        self._brokers: tuple[Broker, ...] = ()
        self._admin: Any = None
        self._internal_address = ""
        self._passwords: dict[str, str] = {}

    def __repr__(self) -> str:
        running = f"running={bool(self._brokers)}"
        return (
            f"EmbeddedKafka(brokers={self._count}, version={self.version!r}, "
            f"security={self.security.protocol!r}, {running})"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and os.getpid() == self._owner and self._launcher is not None and self._brokers:
            self._launcher.publish_archive(self._brokers[0])
        if isinstance(value, Exception) and self._brokers:
            # The logs are removed on close.
            log.warning("Broker logs before %s:\n%s", type(value).__name__, self.logs())
        self.close()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all brokers and wait until clients see each of them.

        :raises EmbeddedKafkaError: a broker did not start; the message contains the end of its log.
        :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
        """
        if self._home is not None:
            raise EmbeddedKafkaError(f"{self!r} is already running")
        self._owner = os.getpid()
        # Created only once the watchdog runs: nothing exists that it would not clean up.
        home = Path(tempfile.gettempdir()) / f"airflow-eos-kafka-{uuid.uuid4().hex[:12]}"
        self._launcher = Launcher.find(home, self.version, self._jvm_options)
        self._watchdog = Watchdog(home, keep=self.keep)
        self._home = home
        try:
            home.mkdir(mode=0o700)
            if self.security.tls:
                self._certificates = make_certificates(home)
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                try:
                    self._start_once(home / f"start-{attempt}", self._launcher)
                    break
                except EmbeddedKafkaError:
                    # Another process may bind a port between our probe and the broker's start.
                    if attempt == _PORT_ATTEMPTS or not any(node.port_was_taken() for node in self._brokers):
                        raise
                    self._kill_all()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the brokers and remove the folder; a second call, or one in a forked child, does nothing."""
        if self._home is None or os.getpid() != self._owner:
            return
        home, self._home, self._admin = self._home, None, None
        self._kill_all()
        self._brokers = ()
        self._passwords.clear()
        if self._watchdog is not None:
            self._watchdog.close()
        if not self.keep:
            shutil.rmtree(home, ignore_errors=True)  # normally done by the watchdog, unless it was killed
        else:
            log.warning("Kept logs and data of the embedded Kafka in %s", home)

    def _start_once(self, folder: Path, launcher: Launcher) -> None:
        folder.mkdir()
        nodes = self._choose_ports()
        settings = (
            version_settings(self.version, self.transaction_version),
            self.security.broker_settings(self._certificates),
            self._broker_config,
        )
        configs: dict[Broker, Path] = {}
        for node_id, ports in nodes.items():
            config = folder / f"broker-{node_id}.properties"
            command = launcher.command("kafka.Kafka", str(config), dump=node_id == 1)
            data, protocol = folder / f"data-{node_id}", self.security.protocol
            log_path = folder / f"broker-{node_id}.log"
            broker = Broker(node_id, command, f"{HOST}:{ports.client}", log_path, data)
            config.write_text(server_properties(node_id, nodes, data, protocol=protocol, overrides=settings))
            configs[broker] = config
        self._brokers = tuple(configs)
        deadline = time.monotonic() + self._start_timeout
        launcher.format(configs, self._features, self._start_timeout)
        for broker in self._brokers:
            broker.start(wait=False)
        for broker in self._brokers:
            broker.wait_until_ready(timeout=max(1.0, deadline - time.monotonic()))
        if self.security.sasl:
            self._create_user(SUPER_USER)
        topics.wait_for_brokers(self._admins(), self._count, max(1.0, deadline - time.monotonic()))

    def _choose_ports(self) -> dict[int, NodePorts]:
        if self._port is not None and not is_free(self._port):
            raise EmbeddedKafkaError(f"port {self._port} of {HOST} is taken: choose another one")
        internal = self.security.separate_internal_listener
        ports = iter(free_ports((3 if internal else 2) * self._count))
        nodes = {
            node_id: NodePorts(next(ports), next(ports), next(ports) if internal else None)
            for node_id in range(1, self._count + 1)
        }
        if self._port is not None:
            nodes[1] = replace(nodes[1], client=self._port)
        self._internal_address = f"{HOST}:{nodes[1].internal}"
        return nodes

    def _kill_all(self) -> None:
        for broker in self._brokers:
            broker.kill()

    # -- clients ------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The nodes, in the order of their ids; ``brokers[0]`` has ``node_id`` 1."""
        if not self._brokers:
            raise EmbeddedKafkaError(f"{self!r} is not running: use it as a context manager")
        return self._brokers

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, comma-separated."""
        return ",".join(broker.address for broker in self.brokers)

    def client_config(self) -> dict[str, str]:
        """Return client settings in librdkafka's names, for a super user if SASL is on; a new dictionary."""
        return self._client_config(SUPER_USER)

    def _client_config(self, user: str) -> dict[str, str]:
        settings = self.security.client_settings(self._certificates, user, self._passwords.get(user, ""))
        return {"bootstrap.servers": self.bootstrap_servers, **settings}

    def logs(self, lines: int = 60, *, warnings_only: bool = False) -> str:
        """Return the last lines of every broker's log.

        :param warnings_only: of these lines, those at WARN and above, with their stacks.
        """
        return "\n".join(broker.log_tail(lines, warnings_only=warnings_only) for broker in self._brokers)

    def admin(self) -> Any:
        """Return a ``confluent_kafka`` ``AdminClient`` of this cluster; one instance, kept until the end."""
        if self._admin is None:
            self._admin = self._new_admin(self.client_config())
        return self._admin

    def _new_admin(self, config: Mapping[str, Any]) -> Any:
        from confluent_kafka.admin import AdminClient

        # log_level 2: refused connections to a broker that a test has killed are expected.
        return AdminClient({**config, "log_level": 2, "reconnect.backoff.max.ms": 200})

    def _admins(self, user: str = SUPER_USER) -> list[Any]:
        """Return one client per running broker; the first answer of each comes from its own broker."""
        if self._count == 1 and user == SUPER_USER:
            return [self.admin()]
        running = [broker for broker in self.brokers if broker.is_alive and not broker.is_paused]
        config = self._client_config(user)
        return [self._new_admin({**config, "bootstrap.servers": broker.address}) for broker in running]

    # -- topics -------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        timeout: float = 30,
    ) -> str:
        """Create a topic; return when every running broker lists its leaders, and the leaders serve it.

        :param replication_factor: default is one replica per broker.
        :param config: topic settings, such as ``{"cleanup.policy": "compact"}``.
        :returns: the name.
        :raises EmbeddedKafkaError: the broker refused it, or a leader is missing after ``timeout`` seconds.
        """
        factor = self._count if replication_factor is None else replication_factor
        topics.create_topic(self._admins(), name, partitions, factor, config or {}, timeout)
        topics.wait_until_served(self._client_config(SUPER_USER), name, partitions, timeout)
        return name

    def delete_topic(self, name: str, *, timeout: float = 30) -> None:
        """Delete a topic and wait until no running broker lists it any more."""
        topics.delete_topic(self._admins(), name, timeout)

    def wait_in_sync(self, *, timeout: float = 60) -> None:
        """Wait until every replica of every partition is in sync: the state to start a fault from."""
        topics.wait_in_sync(self._admins(), timeout)

    # -- users --------------------------------------------------------------------------------------------

    def user(self, name: str) -> dict[str, str]:
        """Return client settings of an ordinary user, created on first use; with ACLs it may do nothing yet.

        :raises ConfigurationError: the cluster's protocol has no users.
        """
        if not self.security.sasl:
            raise ConfigurationError(
                f"security={self.security.protocol!r} has no users: use SASL_PLAINTEXT or SASL_SSL"
            )
        if name not in self._passwords:
            self._create_user(name)
            topics.wait_for_brokers(self._admins(name), self._count, _LOGIN_TIMEOUT)
        return self._client_config(name)

    def grant(self, user: str, *operations: str, **resource: Any) -> None:
        """Allow a user operations such as ``"READ"``, ``"WRITE"`` or ``"DESCRIBE"`` on one resource.

        ::

            kafka.grant("alice", "READ", "DESCRIBE", topic="orders")
            kafka.grant("alice", "WRITE", "DESCRIBE", transactional_id="eos.", prefixed=True)

        :param resource: fields of :class:`~airflow_eos_testing.access.Resource`.
        """
        access.grant(self._admins(), user, operations, access.Resource(**resource))

    def revoke(self, user: str, *operations: str, **resource: Any) -> None:
        """Revoke what :meth:`grant` allowed with the same arguments."""
        access.revoke(self._admins(), user, operations, access.Resource(**resource))

    def _create_user(self, name: str) -> None:
        # Over the inter-broker listener: before the first user exists, nobody can log in to the other.
        password = secrets.token_urlsafe(18)
        access.create_user(self._new_admin({"bootstrap.servers": self._internal_address}), name, password)
        self._passwords[name] = password
