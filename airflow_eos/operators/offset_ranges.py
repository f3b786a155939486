"""Offset ranges as an author, a template or an XCom gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.operators.rendered import literal

GivenRanges: TypeAlias = "Sequence[OffsetRange | Sequence[Any]] | str"
"""``[[topic, partition, start, end], ...]``, or its text as JSON or Python writes it."""


def parse_ranges(name: str, given: GivenRanges) -> tuple[OffsetRange, ...]:
    """Read offset ranges.

    :param name: of the parameter, for the message.
    :raises ConfigurationError: names the value that cannot be read.
    """
    try:
        listed: Any = literal(given) if isinstance(given, str) else given
        if isinstance(listed, Mapping):
            raise TypeError("a mapping is not a list of ranges")  # noqa: TRY301
        return tuple(
            item if isinstance(item, OffsetRange) else OffsetRange.from_list(list(item)) for item in listed
        )
    except (TypeError, ValueError, SyntaxError) as error:
        raise ConfigurationError(
            f"{name} {given!r} must be a list of [topic, partition, start, end]: {error}"
        ) from error
