"""A real Kafka cluster of one or three brokers on loopback, for the length of a ``with`` block."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError, EmbeddedKafkaError
from airflow_eos.testing.broker import START_TIMEOUT, Broker
from airflow_eos.testing.jars import broker_classpath
from airflow_eos.testing.java import find_java
from airflow_eos.testing.ports import HOST, free_ports
from airflow_eos.testing.properties import LOG4J2, NodePorts, server_properties

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

log = logging.getLogger(__name__)

DEFAULT_VERSION = "4.3.1"
_PORT_ATTEMPTS = 3
_POLL = 0.02

# C1 only: a broker lives for seconds, the optimising compiler would not pay. Serial GC: fewer threads.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m")


class EmbeddedKafka:
    """Run a real Kafka cluster (KRaft, combined mode) and remove every trace of it afterwards.

    Guarantee: inside the ``with`` block the cluster answers on :attr:`bootstrap_servers`; after it no
    process and no file is left, also when this process is killed. Ports are free ones of loopback.

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
        self.version = version
        self.keep = keep
        self.transaction_version = (
            _default_transaction_version(version) if transaction_version is None else transaction_version
        )
        self._count = brokers
        self._broker_config = {key: str(value) for key, value in (broker_config or {}).items()}
        self._start_timeout = start_timeout
        self._brokers: tuple[Broker, ...] = ()
        self._home: Path | None = None
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
        self.close()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all brokers and wait until each of them is known to clients.

        :raises EmbeddedKafkaError: a broker did not start; the message holds the end of its log.
        :raises ConfigurationError: Java 17+ or PySpark's jars are missing.
        """
        if self._home is not None:
            raise EmbeddedKafkaError("This cluster runs already")
        classpath = os.pathsep.join(map(str, broker_classpath(self.version)))
        self._home = Path(tempfile.mkdtemp(prefix="airflow-eos-kafka-"))
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                try:
                    self._start_once(self._home / f"attempt-{attempt}", classpath)
                    break
                except EmbeddedKafkaError:
                    # Another process bound a port between our probe and the broker's start.
                    if attempt == _PORT_ATTEMPTS or not any(
                        broker.port_was_taken() for broker in self._brokers
                    ):
                        raise
                    self._kill_all()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the brokers and remove the folder; a second call does nothing."""
        self._kill_all()
        self._brokers = ()
        self._admin = None
        home, self._home = self._home, None
        if home is not None and self.keep:
            log.warning("Kept logs and data of the embedded Kafka in %s", home)
        elif home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _start_once(self, home: Path, classpath: str) -> None:
        home.mkdir()
        (home / "log4j2.xml").write_text(LOG4J2)
        ids = range(1, self._count + 1)
        ports = iter(free_ports(2 * self._count))
        nodes = {node_id: NodePorts(client=next(ports), controller=next(ports)) for node_id in ids}
        java = [
            str(find_java()),
            *_JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}",
            "-cp",
            classpath,
        ]
        overrides = (_version_settings(self.version, self.transaction_version), self._broker_config)
        self._brokers = tuple(
            Broker(
                node_id,
                [*java, "kafka.Kafka", str(home / f"broker-{node_id}.properties")],
                f"{HOST}:{nodes[node_id].client}",
                home / f"broker-{node_id}.log",
            )
            for node_id in ids
        )
        for node_id in ids:
            text = server_properties(node_id, nodes, home / f"data-{node_id}", overrides=overrides)
            (home / f"broker-{node_id}.properties").write_text(text)
        self._format(home, java)
        for broker in self._brokers:
            broker.start(wait=False)
        deadline = time.monotonic() + self._start_timeout
        for broker in self._brokers:
            broker.wait_until_ready(timeout=max(1.0, deadline - time.monotonic()))
        self._wait_until_known(deadline)

    def _format(self, home: Path, java: list[str]) -> None:
        # Starts with a letter: StorageTool takes an id that starts with "-" for an option.
        cluster_id = "e" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        tool = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
        tool += ["--feature", f"transaction.version={self.transaction_version}"]

        def format_one(broker: Broker) -> None:
            config = home / f"broker-{broker.node_id}.properties"
            with broker.log_path.open("ab") as output:
                done = subprocess.run(
                    [*tool, "--config", str(config)],
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

    def _kill_all(self) -> None:
        for broker in self._brokers:
            broker.kill()

    # -- clients ------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The nodes, in the order of their ids; ``brokers[0]`` has ``node_id`` 1."""
        if not self._brokers:
            raise EmbeddedKafkaError("This cluster is not running: use it as a context manager")
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
        return AdminClient(
            {
                **self.client_config(),
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "reconnect.backoff.max.ms": 200,
            }
        )

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
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._count if replication_factor is None else replication_factor,
            config={key: str(value) for key, value in (config or {}).items()},
        )
        deadline = time.monotonic() + timeout
        self._await(
            f"create topic {name!r}", self.admin().create_topics([topic], request_timeout=timeout)[name]
        )
        for admin in self._one_admin_per_broker():
            self._poll_metadata(
                admin,
                lambda metadata: (
                    name in metadata.topics
                    and len(metadata.topics[name].partitions) == partitions
                    and all(
                        part.leader >= 0 and part.error is None
                        for part in metadata.topics[name].partitions.values()
                    )
                ),
                deadline,
                f"topic {name!r} has no leader for every one of its {partitions} partitions",
            )
        return name

    def delete_topic(self, name: str, *, timeout: float = 30) -> None:
        """Delete a topic and wait until no running broker shows it any more."""
        deadline = time.monotonic() + timeout
        self._await(
            f"delete topic {name!r}", self.admin().delete_topics([name], request_timeout=timeout)[name]
        )
        for admin in self._one_admin_per_broker():
            self._poll_metadata(
                admin,
                lambda metadata: name not in metadata.topics,
                deadline,
                f"topic {name!r} is still listed",
            )

    def _one_admin_per_broker(self) -> list[Any]:
        """Clients whose first answer comes from one broker each: brokers learn of a topic one by one."""
        if self._count == 1:
            return [self.admin()]
        return [
            self._new_admin(broker.address)
            for broker in self.brokers
            if broker.is_alive and not broker.is_paused
        ]

    def _wait_until_known(self, deadline: float) -> None:
        for admin in self._one_admin_per_broker():
            self._poll_metadata(
                admin,
                lambda metadata: len(metadata.brokers) == self._count,
                deadline,
                "a broker is missing in the metadata",
            )

    def _poll_metadata(self, admin: Any, holds: Any, deadline: float, complaint: str) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                if holds(admin.list_topics(timeout=max(0.1, min(5.0, deadline - time.monotonic())))):
                    return
                last = ""
            except KafkaException as error:
                last = f" ({error})"
            if time.monotonic() > deadline:
                raise EmbeddedKafkaError(f"Timed out: {complaint}{last}.\n{self.logs(20)}")
            time.sleep(_POLL)

    def _await(self, what: str, future: Any) -> None:
        from confluent_kafka import KafkaException

        try:
            future.result()
        except KafkaException as error:
            raise EmbeddedKafkaError(f"Could not {what}: {error.args[0].str()}") from error


def _default_transaction_version(version: str) -> int:
    return 1 if version.startswith("3.") else 2


def _version_settings(version: str, transaction_version: int) -> dict[str, str]:
    if version.startswith("3."):
        # 3.9 ships transaction.version 1 behind this flag (KIP-890 part 1 became a feature there).
        return {"unstable.feature.versions.enable": "true"} if transaction_version else {}
    return {
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
