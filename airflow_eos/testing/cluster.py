"""A real Kafka cluster of one or three brokers on loopback, for the length of a ``with`` block."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError, EmbeddedKafkaError
from airflow_eos.testing import class_data, topics
from airflow_eos.testing.broker import START_TIMEOUT, Broker
from airflow_eos.testing.jars import broker_classpath
from airflow_eos.testing.java import find_java
from airflow_eos.testing.ports import HOST, free_ports
from airflow_eos.testing.properties import LOG4J2, NodePorts, server_properties, version_settings
from airflow_eos.testing.watchdog import Watchdog, process_mark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

log = logging.getLogger(__name__)

DEFAULT_VERSION = "4.3.1"
_PORT_ATTEMPTS = 3
_ORDERLY_END = 20.0

# C1 only: a broker lives for seconds, the optimising compiler would not pay. Serial GC: fewer threads.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m")


class EmbeddedKafka:
    """Run a real Kafka cluster (KRaft, combined mode) and remove every trace of it afterwards.

    Guarantee: inside the ``with`` block the cluster answers on :attr:`bootstrap_servers`; after it no
    process and no file is left, also when this process is killed. Ports are free ones of loopback.

    Limits: one machine, one user's trust; ``kill()`` keeps the page cache, so power loss is not covered.

    :param brokers: 1 or 3. With 3, topics have replication factor 3 and ``min.insync.replicas`` 2.
    :param version: Kafka version; tested with 4.3.1 and 3.9.2.
    :param broker_config: ``server.properties`` entries that win over the defaults.
    :param transaction_version: the broker feature ``transaction.version`` (KIP-890): by default 2 on 4.x and
        1 on 3.9, where it needs ``unstable.feature.versions.enable``, which is then set.
    :param keep: keep the folder with logs and data after the end, and log its path.
    :param start_timeout: seconds for all brokers to be ready.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        *,
        broker_config: Mapping[str, str] | None = None,
        transaction_version: int | None = None,
        keep: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        if brokers not in (1, 3):
            raise ConfigurationError(f"brokers={brokers}: an embedded cluster has 1 or 3 brokers")
        if transaction_version is None:
            transaction_version = 1 if version.startswith("3.") else 2
        self.version = version
        self.transaction_version = transaction_version
        self.keep = keep
        self._count = brokers
        self._broker_config = {key: str(value) for key, value in (broker_config or {}).items()}
        self._start_timeout = start_timeout
        self._owner = 0
        self._home: Path | None = None
        self._watchdog: Watchdog | None = None
        self._archive: Path | None = None
        self._brokers: tuple[Broker, ...] = ()
        self._admin: Any = None

    def __repr__(self) -> str:
        return (
            f"EmbeddedKafka(brokers={self._count}, version={self.version!r}, running={bool(self._brokers)})"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and os.getpid() == self._owner:
            self._dump_class_data()
        self.close()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all brokers and wait until each of them is known to clients.

        :raises EmbeddedKafkaError: a broker did not start; the message holds the end of its log.
        :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
        """
        if self._home is not None:
            raise EmbeddedKafkaError(f"{self!r} is started already")
        java, classpath = find_java(), broker_classpath(self.version)
        self._owner = os.getpid()
        self._archive = class_data.archive_path(self.version, java, classpath)
        # Named here and made after the watchdog runs: at no moment is there something it does not know of.
        home = Path(tempfile.gettempdir()) / f"airflow-eos-kafka-{uuid.uuid4().hex[:12]}"
        self._watchdog = Watchdog(home, keep=self.keep)
        self._home = home
        try:
            home.mkdir(mode=0o700)
            (home / "log4j2.xml").write_text(LOG4J2)
            options = (*_JVM_OPTIONS, process_mark(home), f"-Dlog4j2.configurationFile={home}/log4j2.xml")
            jvm = [str(java), *options, "-cp", os.pathsep.join(map(str, classpath))]
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                try:
                    self._start_once(home / f"start-{attempt}", jvm)
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
        if self._watchdog is not None:
            self._watchdog.close()
        if self.keep:
            log.warning("Kept logs and data of the embedded Kafka in %s", home)

    def _start_once(self, home: Path, jvm: list[str]) -> None:
        home.mkdir()
        ids = range(1, self._count + 1)
        ports = iter(free_ports(2 * self._count))
        nodes = {node_id: NodePorts(client=next(ports), controller=next(ports)) for node_id in ids}
        overrides = (version_settings(self.version, self.transaction_version), self._broker_config)
        launcher = jvm[:1]
        dumping = launcher
        if self._archive is not None and self._archive.exists():
            launcher = dumping = [*launcher, *class_data.use_options(self._archive)]
        elif self._home is not None:
            dumping = [*launcher, *class_data.dump_options(self._home / "classes.jsa")]
        brokers = []
        for node_id, ports_of_node in nodes.items():
            config = home / f"broker-{node_id}.properties"
            config.write_text(
                server_properties(node_id, nodes, home / f"data-{node_id}", overrides=overrides)
            )
            command = [*(dumping if node_id == 1 else launcher), *jvm[1:], "kafka.Kafka", str(config)]
            address = f"{HOST}:{ports_of_node.client}"
            brokers.append(Broker(node_id, command, address, home / f"broker-{node_id}.log"))
        self._brokers = tuple(brokers)
        deadline = time.monotonic() + self._start_timeout
        self._format([*launcher, *jvm[1:]], home)
        for broker in self._brokers:
            broker.start(wait=False)
        for broker in self._brokers:
            broker.wait_until_ready(timeout=max(1.0, deadline - time.monotonic()))
        topics.wait_for_brokers(self._admins(), self._count, max(1.0, deadline - time.monotonic()))

    def _format(self, jvm: list[str], home: Path) -> None:
        # Starts with a letter: StorageTool takes an id that starts with "-" for an option.
        cluster_id = "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        command = [*jvm, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
        command += ["--feature", f"transaction.version={self.transaction_version}"]

        def format_one(broker: Broker) -> None:
            with broker.log_path.open("ab") as output:
                done = subprocess.run(
                    [*command, "--config", str(home / f"broker-{broker.node_id}.properties")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    timeout=self._start_timeout,
                    check=False,
                )
            if done.returncode:
                raise EmbeddedKafkaError(
                    f"StorageTool could not format broker {broker.node_id}.\n{broker.log_tail()}"
                )

        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(format_one, self._brokers))

    def _dump_class_data(self) -> None:
        """End the first broker in an orderly way if the next cluster would gain an archive by it."""
        if self._home is None or self._archive is None or self._archive.exists() or not self._brokers:
            return
        dumped = self._home / "classes.jsa"
        try:
            self._brokers[0].stop(timeout=_ORDERLY_END)
            if dumped.exists():
                class_data.install(dumped, self._archive)
        except (EmbeddedKafkaError, OSError) as error:
            log.info("No class-data archive was written, the next start is slower: %s", error)

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
        """Client settings in librdkafka's names; a new dictionary each time."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def logs(self, lines: int = 60) -> str:
        """Return the last lines of every broker's log."""
        return "\n".join(broker.log_tail(lines) for broker in self._brokers)

    def admin(self) -> Any:
        """Return a ``confluent_kafka`` ``AdminClient`` of this cluster; one instance, kept until the end."""
        if self._admin is None:
            self._admin = self._new_admin(self.bootstrap_servers)
        return self._admin

    def _new_admin(self, bootstrap: str) -> Any:
        from confluent_kafka.admin import AdminClient

        # log_level 2: refused connections to a broker that a test has killed are no news.
        quiet = {"bootstrap.servers": bootstrap, "log_level": 2, "reconnect.backoff.max.ms": 200}
        return AdminClient({**self.client_config(), **quiet})

    def _admins(self) -> list[Any]:
        """One client per running broker; the first answer of each comes from its own broker."""
        if self._count == 1:
            return [self.admin()]
        running = [broker for broker in self.brokers if broker.is_alive and not broker.is_paused]
        return [self._new_admin(broker.address) for broker in running]

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
        """Create a topic and wait until every running broker shows a leader for each partition.

        :param replication_factor: default is one replica per broker.
        :param config: topic settings, such as ``{"cleanup.policy": "compact"}``.
        :returns: the name.
        :raises EmbeddedKafkaError: the broker refused it, or a leader is missing after ``timeout`` seconds.
        """
        factor = self._count if replication_factor is None else replication_factor
        topics.create_topic(self._admins(), name, partitions, factor, config or {}, timeout)
        return name

    def delete_topic(self, name: str, *, timeout: float = 30) -> None:
        """Delete a topic and wait until no running broker shows it any more."""
        topics.delete_topic(self._admins(), name, timeout)

    def wait_in_sync(self, *, timeout: float = 60) -> None:
        """Wait until every replica of every partition is in sync: the state to start a fault from."""
        topics.wait_in_sync(self._admins(), timeout)
