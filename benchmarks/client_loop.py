"""The usual hand-written job: a confluent-kafka process that consumes, transforms, produces in transactions.

``python -m benchmarks.client_loop SERVERS SOURCE SINK RECORDS``
"""

from __future__ import annotations

import sys
import uuid

from confluent_kafka import Consumer, Producer

PER_TRANSACTION = 10_000


def main(servers: str, source: str, sink: str, records: int) -> None:
    """Copy ``records`` records, 10,000 per transaction."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"loop-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"loop-{uuid.uuid4().hex}",
            "compression.type": "zstd",
            "compression.level": 1,
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 2 * PER_TRANSACTION,
        }
    )
    producer.init_transactions(60)
    consumer.subscribe([source])
    done = 0
    while done < records:
        messages = consumer.consume(PER_TRANSACTION, 1.0)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            value = message.value()
            producer.produce(sink, key=message.key(), value=None if value is None else value + b"!")
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)
        done += len(messages)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
