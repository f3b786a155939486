"""The input of the benchmarks: records of one shape, identical in every run."""

from __future__ import annotations

import json

from confluent_kafka import Producer

PARTITIONS = 4


def is_ok(number: int) -> bool:
    """Return whether the order with this number is marked ``ok``: six of seven are."""
    return number % 7 != 0


def publish(bootstrap_servers: str, topic: str, records: int, partitions: int = PARTITIONS) -> int:
    """Fill a topic: key of 10 bytes, JSON value of about 110 bytes, zstd, spread evenly over the partitions.

    :returns: total bytes of keys and values.
    """
    size = 0
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": "zstd",
            "linger.ms": 100,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number in range(records):
        value = json.dumps(
            {
                "id": number,
                "user": f"user-{number % 9973:05d}",
                "amount": (number * 7919) % 100_000 / 100,
                "city": f"city-{number % 331:03d}",
                "note": "as ordered",
                "ok": is_ok(number),
            }
        )
        size += 10 + len(value)
        while True:
            try:
                producer.produce(
                    topic, key=f"key{number % 9_999_999:07d}", value=value, partition=number % partitions
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(120)
    return size
