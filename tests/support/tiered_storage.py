"""Tiered storage (KIP-405) by Kafka's own test implementation, which copies segments to a folder."""

from __future__ import annotations

from pathlib import Path

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets
from airflow_eos_testing.cluster import DEFAULT_VERSION
from airflow_eos_testing.jars import fetch_described
from tests.support.patience import wait_until

_IVY = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="airflow-eos" module="kafka-storage-test"/><dependencies>
<dependency org="org.apache.kafka" name="kafka-storage" rev="{version}" transitive="false">
<artifact name="kafka-storage" type="jar" ext="jar" m:classifier="test"/>
</dependency></dependencies></ivy-module>
"""
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.ms": "-1",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "segment.bytes": str(1 << 20),
}
"""Settings of a topic whose segments (1 MB, Kafka's minimum) soon are in remote storage only."""


def tiered_storage(folder: Path, version: str = DEFAULT_VERSION) -> dict[str, str]:
    """Return the settings of a broker that copies segments to a folder."""
    label = f"the test jar of kafka-storage {version} (under 1 MB)"
    jar = f"kafka-storage-{version}-test.jar"
    jars = fetch_described(f"kafka-storage-test-{version}", jar, label, _IVY.format(version=version))
    package = "org.apache.kafka.server.log.remote"
    metadata = "remote.log.metadata"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": f"{package}.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": str(jars / jar),
        f"{metadata}.manager.class.name": f"{package}.metadata.storage.TopicBasedRemoteLogMetadataManager",
        f"{metadata}.manager.listener.name": "CLIENT",
        f"rlmm.config.{metadata}.topic.replication.factor": "1",
        f"rlmm.config.{metadata}.topic.num.partitions": "1",
        "rsm.config.dir": str(folder),
        "remote.log.manager.task.interval.ms": "300",
        "log.retention.check.interval.ms": "300",
        "log.initial.task.delay.ms": "300",
    }


def wait_until_remote(connections: BrokerConnections, tp: TopicPartition, end: int) -> None:
    """Wait until only remote storage has the offsets below ``end``."""
    wait_until(lambda: list_offsets(connections, [tp], "earliest_local")[tp] >= end)
