"""What is at each offset of a partition: records, markers, aborted records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.isolation import ControlType, control_type, data_batches
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets
from tests.support.markers import wait_for_markers

COMMIT_LAYOUT = [(0, "record"), (1, "record"), (2, "record"), (3, "commit marker"), (4, "record")]
ABORT_LAYOUT = [
    (0, "record"),
    (1, "record"),
    (2, "aborted"),
    (3, "aborted"),
    (4, "abort marker"),
    (5, "record"),
    (6, "record"),
]


@dataclass(frozen=True)
class Cell:
    """One offset; ``transactional`` tells a record of a transaction from a plain one."""

    offset: int
    kind: str
    text: str
    transactional: bool


def write_commit_layout(config: Mapping[str, Any], topic: str) -> None:
    """Three records in a transaction, its marker, one plain record."""
    _transaction(config, topic, ["r0", "r1", "r2"], commit=True)
    _plain(config, topic, ["r4"])


def write_abort_layout(config: Mapping[str, Any], topic: str) -> None:
    """Two plain records, two in a transaction that aborts, its marker, two plain records."""
    _plain(config, topic, ["r0", "r1"])
    _transaction(config, topic, ["a2", "a3"], commit=False)
    _plain(config, topic, ["r5", "r6"])


def _plain(config: Mapping[str, Any], topic: str, values: list[str]) -> None:
    producer = Producer({**config, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value=value, key=value, partition=0)
    assert producer.flush(30) == 0


def _transaction(config: Mapping[str, Any], topic: str, values: list[str], *, commit: bool) -> None:
    producer = Producer({**config, "linger.ms": 0, "transactional.id": f"layout-{uuid.uuid4().hex[:8]}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, key=value, partition=0)
    assert producer.flush(30) == 0  # in the log before it is aborted
    producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    wait_for_markers(config, [TopicPartition(topic, 0)])


def layout_of(config: Mapping[str, Any], topic: str, partition: int = 0) -> list[Cell]:
    """Return what is at each offset, up to the last stable offset."""
    cells: list[Cell] = []
    with BrokerConnections(ClientConfig.of(config)) as connections:
        tp = TopicPartition(topic, partition)
        end = list_offsets(connections, [tp], "latest")[tp]
        for answer in fetch_answers(connections, TopicPartition(topic, partition), 0, end):
            committed = {batch.header.base_offset for batch in data_batches(answer.batches, answer.aborted)}
            for batch in answer.batches:
                transactional = batch.header.is_transactional
                visible, control = batch.header.base_offset in committed, control_type(batch)
                if control is not None:
                    name = "commit marker" if control is ControlType.COMMIT else "abort marker"
                    cells.append(Cell(batch.header.base_offset, name, name, transactional))
                    continue
                decoded = decode_batch(batch)
                for offset, value in zip(decoded.offset, decoded.value.to_pylist(), strict=True):
                    text = (value or b"").decode(errors="replace")
                    cells.append(Cell(int(offset), "record" if visible else "aborted", text, transactional))
    return cells
