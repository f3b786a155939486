"""Requests of a foreign client: raw record batches."""

from __future__ import annotations

from kafka.protocol.producer import ProduceRequest

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections


def produce_bytes(config: ClientConfig, tp: TopicPartition, batch: bytes) -> None:
    """Write a record batch outside any transaction; the broker must accept it."""
    topic = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            topic(
                name=tp.topic,
                partition_data=[topic.PartitionProduceData(index=tp.partition, records=batch)],
            )
        ],
        max_version=9,
    )
    with BrokerConnections(config) as connections:
        answer = connections.wait(
            connections.send(request, connections.topics([tp.topic])[tp.topic].leaders[tp.partition])
        )
    assert [part.error_code for response in answer.responses for part in response.partition_responses] == [0]
