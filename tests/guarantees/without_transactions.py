"""Jobs without transactions, as contrasts; they may be killed halfway."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_eos.model.ranges import TopicPartition as Place
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.groups import fetch_committed_offsets

Order = Literal["offsets first", "output first"]


def copy(
    config: Mapping[str, Any],
    source: str,
    sink: str,
    group: str,
    order: Order,
    die: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Copy the records from the group's offsets on, then commit them, or the other way round.

    :param die: SIGKILL to itself between the two.
    :param settings: of the producer.
    """
    consumer, records, offsets = _unread(config, source, group)

    def publish() -> None:
        producer = Producer({**config, "linger.ms": 0, "partitioner": "murmur2_random", **(settings or {})})
        transactional = "transactional.id" in (settings or {})
        if transactional:
            producer.init_transactions(30)
            producer.begin_transaction()
        for record in records:
            producer.produce(sink, key=record.key(), value=record.value())
        assert producer.flush(60) == 0
        if transactional:
            producer.commit_transaction(30)

    def commit() -> None:
        consumer.commit(offsets=offsets, asynchronous=False)

    first, second = (commit, publish) if order == "offsets first" else (publish, commit)
    first()
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    second()
    consumer.close()


def copy_with_spark(
    config: Mapping[str, Any], source: str, sink: str, group: str, die: bool = False, session: Any = None
) -> None:
    """As :func:`copy`, output first, with Spark's own Kafka source and sink.

    :param session: a Spark session; without one the process starts its own, and dies with it.
    """
    from tests.support.spark_sessions import new_session

    spark = session or new_session("classic", "local[1]")
    consumer, partitions = _assigned(config, source, group)
    begun = {o.partition: o.offset for o in consumer.committed(partitions, timeout=30)}
    ends = [
        TopicPartition(source, tp.partition, consumer.get_watermark_offsets(tp, timeout=30)[1])
        for tp in partitions
    ]
    kafka = {"kafka.bootstrap.servers": config["bootstrap.servers"]}
    reading = {
        "subscribe": source,
        # -2: the earliest.
        "startingOffsets": json.dumps({source: {p: o if o >= 0 else -2 for p, o in begun.items()}}),
        "endingOffsets": json.dumps({source: {end.partition: end.offset for end in ends}}),
    }
    frame = spark.read.format("kafka").options(**kafka, **reading).load().select("key", "value")
    frame.write.format("kafka").options(**kafka, topic=sink).save()
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


def topic_by_topic(
    config: Mapping[str, Any],
    outputs: Mapping[str, Iterable[bytes | None]],
    die_before: str | None = None,
) -> None:
    """Write each topic's values, one topic after the other.

    :param die_before: SIGKILL to itself before it writes this topic.
    """
    producer = Producer({**config, "linger.ms": 0})
    for topic, values in outputs.items():
        if topic == die_before:
            os.kill(os.getpid(), signal.SIGKILL)
        for value in values:
            producer.produce(topic, value=value)
        assert producer.flush(60) == 0


def count(config: Mapping[str, Any], source: str, counter: str, group: str, die: bool = False) -> None:
    """Add the events from the group's offsets on to the last count, then commit the offsets."""
    consumer, records, offsets = _unread(config, source, group)
    _, counts, _ = _unread(config, counter, "nobody")
    total = int(counts[-1].value()) + sum(int(record.value()) for record in records)
    producer = Producer({**config, "linger.ms": 0})
    producer.produce(counter, key="count", value=str(total))
    assert producer.flush(60) == 0
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _unread(
    config: Mapping[str, Any], topic: str, group: str
) -> tuple[Consumer, list[Any], list[TopicPartition]]:
    """Read from the group's offsets on; return consumer, records and the offsets to commit."""
    consumer, partitions = _assigned(config, topic, group)
    unfinished, records = set(range(len(partitions))), []
    while unfinished:
        message = consumer.poll(60)  # a new broker creates its offsets topic first
        assert message is not None
        if message.error() is None:
            records.append(message)
        else:
            unfinished.discard(message.partition())
    return consumer, records, [o for o in consumer.position(partitions) if o.offset >= 0]


def _assigned(config: Mapping[str, Any], topic: str, group: str) -> tuple[Consumer, list[TopicPartition]]:
    """Return a consumer that has all partitions, and the partitions."""
    consumer = Consumer(
        {
            **config,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    # Assigned, not subscribed: a killed member would block the next one for 45 s.
    partitions = [
        TopicPartition(topic, p) for p in sorted(consumer.list_topics(topic).topics[topic].partitions)
    ]
    # librdkafka waits for ever for the offsets if a new coordinator refuses its first request.
    with BrokerConnections(ClientConfig.of(config)) as connections:
        places = [Place(tp.topic, tp.partition) for tp in partitions]
        fetch_committed_offsets(connections, group, places, stable=False)
    consumer.assign(partitions)
    return consumer, partitions
