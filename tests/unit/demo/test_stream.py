"""The demo's input records can be told apart."""

from __future__ import annotations

import json

from demo.stream import load_flights


def test_records_of_the_same_minute_get_tags_of_their_own(tmp_path):
    """Two equal flights stay two records; their minute does not change."""
    flight = {"date": "2001/01/01 00:47", "delay": 6, "distance": 5, "origin": "DTW", "destination": "LAS"}
    path = tmp_path / "flights.json"
    path.write_text(json.dumps([flight] * 3))
    first, second, third = load_flights(path, 0)
    assert [second.timestamp - first.timestamp, third.timestamp - first.timestamp] == [1, 2]
    assert first.value == second.value


def test_the_generated_stream_has_malformed_records_and_unique_tags():
    """One in a hundred is malformed, and the stream is the same every time."""
    flights = load_flights(None, 2000)
    assert len({flight.timestamp for flight in flights}) == 2000
    assert flights == load_flights(None, 2000)
    broken = sum(not flight.value.endswith(b"}") or b'"far"' in flight.value for flight in flights)
    assert 5 <= broken <= 50
