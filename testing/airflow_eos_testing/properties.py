"""The configuration files of an embedded broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# KafkaConfig prints 300 lines at every start; the other two loggers repeat what the broker's log.
LOG4J2 = """\
<Configuration status="error">
  <Appenders>
    <Console name="console"><PatternLayout pattern="%d %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="console"/></Root>
    <Logger name="kafka.server.KafkaConfig" level="warn"/>
    <Logger name="org.apache.kafka.common.config" level="warn"/>
    <Logger name="org.apache.zookeeper" level="warn"/>
  </Loggers>
</Configuration>
"""


_FEATURES_SINCE = (3, 8)


@dataclass(frozen=True)
class NodePorts:
    """Ports of one node on loopback."""

    client: int
    controller: int
    internal: int | None = None
    """Inter-broker listener; None if brokers use the client listener."""


def server_properties(
    node_id: int,
    nodes: Mapping[int, NodePorts],
    data: Path,
    *,
    protocol: str = "PLAINTEXT",
    overrides: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the text of ``server.properties`` for one node in combined mode (broker and controller).

    :param node_id: the node to write for.
    :param nodes: ports of every node of the cluster, by node id.
    :param data: folder of the log segments.
    :param protocol: security protocol of the client listener.
    :param overrides: settings that override the defaults; later ones override earlier ones.
    """
    count = len(nodes)
    replication, min_isr = str(count), "1" if count == 1 else "2"
    voters = ",".join(f"{node}@{HOST}:{ports.controller}" for node, ports in nodes.items())
    own = nodes[node_id]
    advertised = [f"CLIENT://{HOST}:{own.client}"]
    if own.internal is not None:
        advertised.append(f"INTERNAL://{HOST}:{own.internal}")
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "listeners": ",".join([*advertised, f"CONTROLLER://{HOST}:{own.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": f"CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT" if own.internal is None else "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # An unknown topic must be an error in tests, never a new topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replication,
        "min.insync.replicas": min_isr,
        # Internal topics get few partitions, as each one costs files and an election at first use.
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min_isr,
        "group.initial.rebalance.delay.ms": "0",
        # The cleaner's default buffer of 128 MB is a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        # By default an idle cleaner checks again after 15 s: each test of compaction would wait.
        "log.cleaner.backoff.ms": "500",
        # No-op metadata records, twice a second, are off: they and a cleaner's passes over hundreds of topics
        # were half the load of an idle broker.
        "metadata.max.idle.interval.ms": "0",
    }
    for override in overrides:
        settings.update(override)
    return "".join(f"{key}={_escape(value)}\n" for key, value in settings.items())


def formatting_features(version: str, transaction_version: int) -> dict[str, int]:
    """Return the levels of the features that a cluster is formatted with, by name.

    ``kafka-storage format --feature`` came with Kafka 3.8 (KIP-1022); older brokers have no
    ``transaction.version`` either.

    :raises ConfigurationError: this version does not support the level.
    """
    if tuple(map(int, version.split(".")[:2])) >= _FEATURES_SINCE:
        return {"transaction.version": transaction_version}
    if transaction_version:
        raise ConfigurationError(
            f"transaction_version={transaction_version}: Kafka {version} has no such feature; leave it out, "
            "or use 3.9 or later"
        )
    return {}


def default_transaction_version(version: str) -> int:
    """Return the highest level that a version's brokers support: 2 on 4.x, 1 on 3.9, 0 before 3.8."""
    if tuple(map(int, version.split(".")[:2])) < _FEATURES_SINCE:
        return 0
    return 1 if version.startswith("3.") else 2


def version_settings(version: str, transaction_version: int) -> dict[str, str]:
    """Return settings that only some Kafka versions know or need."""
    if version.startswith("3."):
        # 3.9 ships transaction.version 1 behind this flag.
        return {"unstable.feature.versions.enable": "true"} if transaction_version else {}
    return {
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def _escape(value: str) -> str:
    """Escape a value for Java's properties format (backslashes and line ends of PEM texts)."""
    return value.replace("\\", "\\\\").replace("\n", "\\n\\\n")
