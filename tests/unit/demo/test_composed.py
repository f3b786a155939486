"""The run in containers: input that may be published twice."""

from __future__ import annotations

from dataclasses import dataclass

from demo.composed import after
from demo.stream import load_flights


@dataclass
class Seen:
    timestamp: int


def test_flights_of_an_empty_topic_stay_as_they_are():
    """The first call publishes the demo's input."""
    flights = load_flights(None, 20)

    assert after(flights, []) == flights


def test_flights_published_again_get_timestamps_of_their_own():
    """Otherwise the comparison could not tell the two calls apart."""
    flights = load_flights(None, 20)
    published = [Seen(flight.timestamp) for flight in flights]

    moved = after(flights, published)

    assert [(flight.key, flight.value) for flight in moved] == [(f.key, f.value) for f in flights]
    assert not {flight.timestamp for flight in moved} & {seen.timestamp for seen in published}
    assert len({flight.timestamp for flight in moved}) == len(flights)
