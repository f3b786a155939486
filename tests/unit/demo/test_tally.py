"""The demo's verdict: no error passes it."""

from __future__ import annotations

import json

import pytest

from airflow_eos_testing import Record
from demo.tally import CLASSIFIED, DEAD_LETTERS, compare, delay_class


def record(topic, tag, value, key=b"DTW"):
    """Make a record like a reader's; a dict becomes JSON."""
    data = json.dumps(value).encode() if isinstance(value, dict) else value
    return Record(topic, 0, 0, key, data, (), tag, 1)


def flight(**changes):
    """Make a flight."""
    return {
        "date": "2001/01/01 00:47",
        "delay": 66,
        "distance": 1750,
        "origin": "DTW",
        "destination": "LAS",
        **changes,
    }


INPUTS = [
    record("flights", 1, flight()),
    record("flights", 2, flight(delay=None)),
    record("flights", 3, b"[]"),
    record("flights", 4, flight(origin=None)),
    record("flights", 5, flight(distance="far")),
]
OUTPUTS = [
    record(CLASSIFIED, 1, {**flight(), "class": "major"}),
    record(CLASSIFIED, 2, {k: v for k, v in flight().items() if k != "delay"} | {"class": "cancelled"}),
    record(DEAD_LETTERS, 3, b"[]"),
    record(DEAD_LETTERS, 4, flight(origin=None)),
    record(DEAD_LETTERS, 5, flight(distance="far")),
]


def test_an_exact_output_is_accepted_and_counted():
    """Every record has its one output, in any order."""
    tally = compare(INPUTS, reversed(OUTPUTS))
    assert tally.exact
    assert tally.line == "demo: 5 records in, 5 records out, 0 lost, 0 duplicated"


def test_a_lost_and_a_duplicated_record_do_not_cancel_out():
    """Equal counts prove nothing."""
    tally = compare(INPUTS, [*OUTPUTS[:4], OUTPUTS[0]])
    assert not tally.exact
    assert tally.line == "demo: 5 records in, 5 records out, 1 lost, 1 duplicated"


@pytest.mark.parametrize(
    "instead",
    [
        record(CLASSIFIED, 1, {**flight(), "class": "minor"}),
        record(CLASSIFIED, 1, {**flight(), "class": "major"}, key=b"LAS"),
        record(DEAD_LETTERS, 1, flight()),
        record(CLASSIFIED, 1, b"no JSON"),
        record(CLASSIFIED, 1, None),
    ],
)
def test_an_output_with_another_content_is_wrong(instead):
    """Value, key and topic are compared, not only the tag."""
    tally = compare(INPUTS, [instead, *OUTPUTS[1:]])
    assert not tally.exact
    assert len(tally.wrong) == 1
    assert str(tally.wrong[0]) == tally.complaints()


def test_an_output_of_no_input_is_wrong():
    """A record without input is not a duplicate, and not accepted."""
    tally = compare(INPUTS, [*OUTPUTS, record(CLASSIFIED, 99, {})])
    assert (tally.exact, tally.lost, tally.duplicated, len(tally.wrong)) == (False, 0, 0, 1)


def test_inputs_that_cannot_be_told_apart_are_refused():
    """Without unique tags a loss could hide behind a duplicate."""
    with pytest.raises(ValueError, match="timestamp 1"):
        compare([INPUTS[0], INPUTS[0]], [])


@pytest.mark.parametrize(
    ("minutes", "name"),
    [
        (None, "cancelled"),
        (-20, "on_time"),
        (14, "on_time"),
        (15, "minor"),
        (59, "minor"),
        (60, "major"),
        (180, "severe"),
    ],
)
def test_delays_are_classified_at_their_bounds(minutes, name):
    """A bound belongs to the class above it."""
    assert delay_class(minutes) == name
