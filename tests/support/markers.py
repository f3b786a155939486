"""Waits for transaction markers: a coordinator answers EndTxn before they are written to the partitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets

SECONDS = 30


def wait_for_markers(config: Mapping[str, Any], partitions: Collection[TopicPartition]) -> None:
    """Wait until no transaction is open in the partitions: last stable offset equals high watermark."""
    deadline = time.monotonic() + SECONDS
    with BrokerConnections(ClientConfig.of(config)) as connections:
        while list_offsets(connections, partitions, "latest") != list_offsets(
            connections, partitions, "latest", isolation="read_uncommitted"
        ):
            assert time.monotonic() < deadline, f"a transaction stays open in {partitions}"
            time.sleep(0.02)
