"""The demo's input: flights, each with a unique timestamp.

The timestamp is the tag that identifies a record in the output: the app passes it through unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_apps.flights_input import Message, generate_flights, read_flights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MALFORMED = 0.01


def load_flights(path: Path | None, records: int) -> list[Message]:
    """Return the tagged input.

    :param path: a JSON array of flights; None generates a stream of which one in a hundred is malformed.
    :param records: length of the generated stream.
    """
    return tag(read_flights(path) if path else generate_flights(records, malformed=MALFORMED))


def tag(messages: Iterable[Message]) -> list[Message]:
    """Shift timestamps by the fewest milliseconds that make each unique."""
    used: set[int] = set()
    tagged = []
    for message in messages:
        timestamp = message.timestamp
        while timestamp in used:
            timestamp += 1
        used.add(timestamp)
        tagged.append(replace(message, timestamp=timestamp))
    return tagged
