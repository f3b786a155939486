from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark_sessions import new_session
from tests.system.flights_support import MALFORMED, canonical, expected_output

from flights import DEAD_LETTER_TOPIC, process  # isort: skip
from flights_input import Message, generate_flights  # isort: skip

COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = new_session("classic", **{"spark.sql.session.timeZone": "UTC"})
    yield session
    session.stop()


def test_every_row_is_classified_or_a_dead_letter(spark: Any) -> None:
    """For generated flights, each limit and all malformed shapes, Spark's result equals plain Python's."""
    limits = [
        Message(b"K", f'{{"date":"d","origin":"o","destination":"e","delay":{delay}}}'.encode(), 0)
        for delay in (-60, -1, 0, 14, 15, 59, 60, 179, 180, 522, "null")
    ]
    messages = [*generate_flights(2000, malformed=0.05), *limits, *MALFORMED]
    moment = dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)
    rows = [(m.key, m.value, "flights", 3, offset, moment) for offset, m in enumerate(messages)]
    processed = process(spark.createDataFrame(rows, COLUMNS)).collect()
    classified, dead = expected_output(messages)
    assert len(processed) == len(messages)
    assert len(dead) > len(MALFORMED)
    classes = {json.loads(flight)["class"] for _, flight in classified}
    assert classes == {"on_time", "minor", "major", "severe", "cancelled"}
    assert Counter(bytes(row.value) for row in processed if row.topic == DEAD_LETTER_TOPIC) == dead
    assert (
        Counter((bytes(row.key), canonical(json.loads(row.value))) for row in processed if row.topic is None)
        == classified
    )


def test_dead_letter_says_what_is_wrong_and_where_it_was_read(spark: Any) -> None:
    """A dead letter keeps key, bytes and time; its headers name the problem and the source offset."""
    moment = dt.datetime(2001, 2, 3, tzinfo=dt.timezone.utc)
    rows = [
        (b"k", b'{"date":"d","delay":1}', "flights", 3, 42, moment),
        (None, None, "flights", 0, 7, moment),
    ]
    first, second = process(spark.createDataFrame(rows, COLUMNS), dead_letter_topic="dead").collect()
    headers = {header.key: bytes(header.value).decode() for header in first.headers}
    assert headers == {
        "error": "missing: origin, destination",
        "source.topic": "flights",
        "source.partition": "3",
        "source.offset": "42",
    }
    assert (first.topic, bytes(first.key), bytes(first.value)) == ("dead", b"k", b'{"date":"d","delay":1}')
    assert (second.topic, second.key, second.value) == ("dead", None, None)
    assert bytes(second.headers[0].value) == b"not a flight in JSON"


def test_generated_stream_is_the_same_each_time() -> None:
    """The generator is a pure function of its arguments; about the given fraction is malformed."""
    first = list(generate_flights(5000, malformed=0.1))
    assert first == list(generate_flights(5000, malformed=0.1))
    _, dead = expected_output(first)
    assert 400 < sum(dead.values()) < 600
    assert [m.timestamp for m in first] == sorted(m.timestamp for m in first)
