"""Compares the output with the input, record by record; shares no code with the app or the package.

The expected output of each record is computed a second time here, in plain Python.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos_testing import Record

CLASSIFIED = "flights-classified"
DEAD_LETTERS = "flights-dead-letter"
_MAX_SHOWN = 5
_TYPES = {"date": str, "origin": str, "destination": str, "delay": int, "distance": int}
_OPTIONAL = ("delay", "distance")


class Output(NamedTuple):
    """The output of one record: topic, key and value."""

    topic: str
    key: bytes | None
    value: Any


@dataclass(frozen=True)
class Tally:
    """Result of the comparison.

    :param lost: records without an output.
    :param duplicated: outputs beyond the first of a record.
    :param wrong: descriptions of outputs that belong to no record, or differ from the expected one.
    """

    records_in: int
    records_out: int
    lost: int
    duplicated: int
    wrong: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether every record has exactly one output, the expected one."""
        return self.records_in == self.records_out and not (self.lost or self.duplicated or self.wrong)

    @property
    def line(self) -> str:
        """The demo's last line."""
        return (
            f"demo: {self.records_in} records in, {self.records_out} records out, "
            f"{self.lost} lost, {self.duplicated} duplicated"
        )

    def complaints(self) -> str:
        """Describe the first wrong outputs; empty if there are none."""
        shown = list(self.wrong[:_MAX_SHOWN])
        if len(self.wrong) > _MAX_SHOWN:
            shown.append(f"and {len(self.wrong) - _MAX_SHOWN} more")
        return "\n".join(shown)


def compare(inputs: Iterable[Record], outputs: Iterable[Record]) -> Tally:
    """Match outputs with inputs by timestamp, the tag.

    :raises ValueError: two inputs have the same tag.
    """
    expected: dict[int, Output] = {}
    for record in inputs:
        if record.timestamp in expected:
            raise ValueError(f"two input records have the timestamp {record.timestamp}: they need tags")
        expected[record.timestamp] = must_become(record)
    written: defaultdict[int, list[Output]] = defaultdict(list)
    for record in outputs:
        written[record.timestamp].append(_as_output(record))
    wrong = [f"{tag}: belongs to no input: {written[tag][0]}" for tag in written.keys() - expected.keys()]
    wrong += [
        f"{tag}: {output} should be {expected[tag]}"
        for tag, many in written.items()
        for output in many
        if tag in expected and output != expected[tag]
    ]
    return Tally(
        records_in=len(expected),
        records_out=sum(map(len, written.values())),
        lost=len(expected.keys() - written.keys()),
        duplicated=sum(len(many) - 1 for tag, many in written.items() if tag in expected),
        wrong=tuple(wrong),
    )


def must_become(record: Record) -> Output:
    """Return the expected output of one input record."""
    flight = _parse(record.value)
    if flight is None:
        return Output(DEAD_LETTERS, record.key, record.value)
    kept = {name: value for name, value in flight.items() if value is not None}
    return Output(CLASSIFIED, record.key, {**kept, "class": delay_class(flight.get("delay"))})


def delay_class(minutes: int | None) -> str:
    """Classify a delay by the bounds of 15 minutes, one hour and three hours."""
    if minutes is None:
        return "cancelled"
    bounds = ((15, "on_time"), (60, "minor"), (180, "major"))
    return next((name for bound, name in bounds if minutes < bound), "severe")


def _parse(value: bytes | None) -> dict[str, Any] | None:
    """Return the flight, or None if the value is not one."""
    try:
        flight = json.loads(value or b"")
    except ValueError:
        return None
    if not isinstance(flight, dict):
        return None
    fits = all(
        isinstance(flight.get(name), kind) or (flight.get(name) is None and name in _OPTIONAL)
        for name, kind in _TYPES.items()
    )
    return flight if fits else None


def _as_output(record: Record) -> Output:
    value: Any = record.value
    if record.topic == CLASSIFIED:
        with suppress(ValueError):  # left undecoded, it will compare as wrong
            value = json.loads(record.value or b"")
    return Output(record.topic, record.key, value)
