"""Publish flights to a topic: real ones from a file, or a generated stream of the same shape.

::

    python spark_apps/flights_input.py localhost:9092 --input flights-20k.json
    python spark_apps/flights_input.py localhost:9092 --records 100000 --malformed 0.01

Key = origin, timestamp = date (taken as UTC), so a topic has daily data intervals. The flights are from 2001:
their topics, and those that keep their event time, need :data:`TOPIC_CONFIG`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOPIC = "flights"
TOPICS = {TOPIC: 4, "flights-classified": 4, "flights-dead-letter": 1}
"""Topics of the example Dag and their partitions."""
TOPIC_CONFIG = {"retention.ms": "-1"}
"""Without it the broker deletes records from 2001 at once: retention is based on timestamps."""
_AIRPORTS = (
    "ATL",
    "BOS",
    "DEN",
    "DFW",
    "DTW",
    "HNL",
    "IAH",
    "JFK",
    "LAS",
    "LAX",
    "MIA",
    "ORD",
    "PHX",
    "SEA",
    "SFO",
)
_FIRST = dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)
_SECONDS = 90 * 24 * 3600
_DATE = "%Y/%m/%d %H:%M"


@dataclass(frozen=True, slots=True)
class Message:
    """One record to publish; ``timestamp`` in milliseconds since the epoch."""

    key: bytes
    value: bytes
    timestamp: int


def read_flights(path: str | Path) -> Iterator[Message]:
    """Yield the flights of a JSON array, in its order."""
    for flight in json.loads(Path(path).read_text()):
        yield Message(
            flight["origin"].encode(),
            _dumps(flight).encode(),
            _milliseconds(dt.datetime.strptime(flight["date"], _DATE).replace(tzinfo=dt.timezone.utc)),
        )


def generate_flights(records: int, *, malformed: float = 0.0, seed: int = 20011) -> Iterator[Message]:
    """Generate flights over 90 days, in time order; the same arguments give the same stream.

    :param malformed: fraction of values that are not a flight: truncated, of a wrong type, without an origin.
    """
    chance = random.Random(seed)
    for number in range(records):
        date = _FIRST + dt.timedelta(seconds=_SECONDS * number // max(1, records))
        origin, destination = chance.sample(_AIRPORTS, 2)
        flight: dict[str, Any] = {
            "date": date.strftime(_DATE),
            "delay": None if chance.random() < 0.01 else round(chance.expovariate(1 / 25) - 18),  # noqa: PLR2004
            "distance": chance.randrange(100, 3000),
            "origin": origin,
            "destination": destination,
        }
        value = _dumps(flight)
        if chance.random() < malformed:
            value = chance.choice(
                (
                    value[: chance.randrange(len(value))],
                    _dumps({**flight, "distance": "far"}),
                    _dumps({name: field for name, field in flight.items() if name != "origin"}),
                    "[]",
                )
            )
        yield Message(origin.encode(), value.encode(), _milliseconds(date))


def publish(kafka: Mapping[str, Any], topic: str, messages: Iterable[Message]) -> int:
    """Send the messages with an idempotent producer and return the number of acknowledged ones.

    :param kafka: client settings in librdkafka's names.
    :raises RuntimeError: a message was not acknowledged; names the first error.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            **kafka,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            # As the Java client's default: a key goes to the same partition whichever client writes it.
            "partitioner": "murmur2_random",
        }
    )
    failures: list[str] = []

    def acknowledged(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    sent = 0
    for message in messages:
        while True:
            try:
                producer.produce(
                    topic, message.value, message.key, timestamp=message.timestamp, on_delivery=acknowledged
                )
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
        producer.poll(0)
    producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} of {sent} messages were not acknowledged, first: {failures[0]}")
    return sent


def _dumps(flight: Any) -> str:
    return json.dumps(flight, separators=(",", ":"))


def _milliseconds(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


def main() -> None:
    """Publish flights as requested on the command line."""
    parser = argparse.ArgumentParser(description="Publish flights to a Kafka topic.")
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--input", type=Path, help="JSON array of flights; default: a generated stream")
    parser.add_argument("--records", type=int, default=20_000, help="length of the generated stream")
    parser.add_argument(
        "--malformed", type=float, default=0.01, help="malformed fraction of the generated stream"
    )
    given = parser.parse_args()
    messages = (
        read_flights(given.input)
        if given.input
        else generate_flights(given.records, malformed=given.malformed)
    )
    count = publish({"bootstrap.servers": given.bootstrap_servers}, given.topic, messages)
    print(f"{count} flights published to {given.topic}")  # noqa: T201


if __name__ == "__main__":
    main()
