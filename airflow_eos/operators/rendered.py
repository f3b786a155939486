"""Reads values that a template may have rendered: a list as its text, a name as a number."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.names import checked_topics
from airflow_eos.model.ranges import OffsetRange

GivenRanges: TypeAlias = "Sequence[OffsetRange | Sequence[Any]] | str"
"""``[[topic, partition, start, end], ...]``, or its text as JSON or Python writes it."""

_LIST_BEGINS = ("[", "(")  # not valid in a topic name


def literal(text: str) -> Any:
    """Return the value of a JSON text, or of a Python literal: a template without ``| tojson``.

    :raises ValueError: it is neither.
    :raises SyntaxError: the same.
    """
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def is_literal(value: Any) -> bool:
    """Return whether a value is known at parse: neither a template nor the result of another task.

    A mapping always counts as known: only its keys are checked.
    """
    if isinstance(value, str):
        return not ("{{" in value or "{%" in value)
    if isinstance(value, list | tuple):
        return all(is_literal(element) for element in value)
    return value is None or not hasattr(value, "resolve")


def parse_topics(field: str, given: Any) -> tuple[str, ...]:
    """Return names of topics: from one, a sequence, or the text of a list.

    :param field: name of the parameter, for the message.
    :raises ConfigurationError: names the value that is not a topic name.
    """
    listed = given
    if isinstance(given, str):
        listed = (given,)
        if given.lstrip().startswith(_LIST_BEGINS):
            try:
                listed = literal(given.strip())
            except (ValueError, SyntaxError) as error:
                raise ConfigurationError(f"{field} {given!r} must be a list of topics: {error}") from error
    if isinstance(listed, Mapping):
        raise ConfigurationError(f"{field} must be a list of topics, got {given!r}")
    if not isinstance(listed, Iterable) or isinstance(listed, str | bytes):
        listed = (listed,)
    return tuple(checked_topics(field, tuple(listed)))


def parse_partition(field: str, given: Any) -> int | None:
    """Return the number of a partition, None for all; raises ConfigurationError for anything else."""
    if given is None:
        return None
    number = int(given) if isinstance(given, str) and given.strip().removeprefix("-").isdecimal() else given
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ConfigurationError(f"{field} must be the number of a partition, from 0, or None, got {given!r}")
    return number


def parse_ranges(name: str, given: GivenRanges) -> tuple[OffsetRange, ...]:
    """Read offset ranges.

    :param name: name of the parameter, for the message.
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
