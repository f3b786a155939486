"""The expected output of every flight, computed without Spark."""

from __future__ import annotations

import json
import sys
from collections import Counter

from airflow_eos_testing import EmbeddedKafka
from tests.system.airflow_env import ROOT

sys.path.append(str(ROOT / "spark_apps"))

from flights_input import TOPIC_CONFIG, TOPICS, Message, generate_flights, read_flights

REAL = ROOT.parent / "shared" / "data" / "flights-20k.json"
MALFORMED = tuple(
    Message(b"XXX", value, 978_307_200_000)
    for value in (
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"delay":3}',
        b"\xff\xfe",
        b'{"date":"d","origin":"o","delay":1}',
    )
)


def flights_input() -> tuple[str, list[Message]]:
    """Return the 20,000 real flights, or as many generated ones if the file is missing, and broken rows."""
    if REAL.exists():
        return f"real flights of {REAL.name}", [*read_flights(REAL), *MALFORMED]
    return "20,000 generated flights (the file of real ones is not here)", [
        *generate_flights(20_000, malformed=0.01),
        *MALFORMED,
    ]


def expected(value: bytes | None) -> str | None:
    """Return the class of a flight, or None for a dead letter."""
    try:
        flight = json.loads(value or b"")
    except ValueError:
        return None
    names = ("date", "origin", "destination")
    if not isinstance(flight, dict) or not all(isinstance(flight.get(name), str) for name in names):
        return None
    if not all(isinstance(flight.get(name), (int, type(None))) for name in ("delay", "distance")):
        return None
    delay = flight.get("delay")
    if delay is None:
        return "cancelled"
    return next(name for name, below in LIMITS.items() if delay < below)


LIMITS = {"on_time": 15, "minor": 60, "major": 180, "severe": float("inf")}


def expected_output(
    messages: list[Message],
) -> tuple[Counter[tuple[bytes | None, str]], Counter[bytes | None]]:
    """Return the multisets of (key, classified flight as canonical JSON) and of dead letters."""
    classified: Counter[tuple[bytes | None, str]] = Counter()
    dead: Counter[bytes | None] = Counter()
    for message in messages:
        name = expected(message.value)
        if name is None:
            dead[message.value] += 1
        else:
            classified[message.key, canonical({**json.loads(message.value), "class": name})] += 1
    return classified, dead


def canonical(flight: dict[str, object]) -> str:
    """Return a canonical text of a flight; a null field and a missing one are the same."""
    return json.dumps({name: value for name, value in flight.items() if value is not None}, sort_keys=True)


PIPELINES = (
    "unlimited",
    "one",
    "narrow",
    "late",
    "open",
    "lost",
    "driver",
    "submitted",
    "timed",
    "rounds",
    "mapped",
    "listed1",
    "listed2",
)
"""Copies of the test Dags, from ``<name>-in`` to ``<name>-out``."""


def make_topics(kafka: EmbeddedKafka) -> None:
    """Create the topics of the example Dag and of the test Dags."""
    examples = ("flights-daily", "flights-batched", "flights-on-arrival")
    more = {name: 2 for example in examples for name in (example, f"{example}-dead-letter")}
    tests = dict.fromkeys(
        ("held-in", "held-out", "waits-in", "waits-out", "woken-in", "orders", "orders-large"), 2
    )
    tests |= {f"{name}-{end}": 2 for name in PIPELINES for end in ("in", "out")}
    tests |= {"table-in": 4, "tutorial-in": 2}
    tests |= dict.fromkeys(("cleared-in", "cleared-again", "cleared-never", "replayed-out"), 2)
    backfilled = ("four", "ninety", "shared", "restored", "partitioned")
    tests |= {f"{name}-{end}": 4 for name in backfilled for end in ("in", "out", "cursor-out", "dead")}
    for name, partitions in {**TOPICS, **more, **tests}.items():
        kafka.create_topic(name, partitions, config=TOPIC_CONFIG)
