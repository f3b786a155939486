"""Validation of parameters: the kinds of values, and the error text for a value of another kind."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    :param must_be: completes "<parameter> must be".
    :param holds: returns whether a value is of this kind.
    :param words: valid words, to suggest one for a misspelt value.
    """

    must_be: str
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()

    def problem(self, field: str, value: object) -> str:
        """Return the error text for a value that is not of this kind."""
        return f"{field} must be {self.must_be}, got {value!r}{did_you_mean(value, self.words)}"

    def check(self, field: str, value: object) -> None:
        """Raise ConfigurationError, naming parameter, value and kind, for a value of another kind."""
        if not self.holds(value):
            raise ConfigurationError(self.problem(field, value))

    def __or__(self, other: Kind) -> Kind:
        """Return the kind of values that are of either kind."""
        return Kind(
            f"{self.must_be} or {other.must_be}",
            lambda value: self.holds(value) or other.holds(value),
            (*self.words, *other.words),
        )


def whole_number(least: int) -> Kind:
    """Return the kind of whole numbers >= ``least``, as JSON has them: no NumPy integer, no ``True``."""
    return Kind(
        f"a whole number of at least {least}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
    )


def duration(*, above: bool = False) -> Kind:
    """Return the kind of durations from 0 s to 36500 days, which dates can add; > 0 s with ``above``."""
    zero, longest = dt.timedelta(0), dt.timedelta(days=36500)
    return Kind(
        f"a datetime.timedelta {'longer than' if above else 'of at least'} 0 s and at most 36500 days",
        lambda value: (
            isinstance(value, dt.timedelta)
            and (zero < value if above else zero <= value)
            and value <= longest
        ),
    )


def seconds(*, above: bool = False) -> Kind:
    """Return the kind of numbers of seconds >= 0; > 0 with ``above``."""
    return Kind(
        f"a number of seconds {'above' if above else 'of at least'} 0",
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (value > 0 if above else value >= 0)
        ),
    )


def word(*words: str) -> Kind:
    """Return the kind whose values are these words."""
    listed = ", ".join(map(repr, words[:-1]))
    return Kind(f"{listed} or {words[-1]!r}", lambda value: isinstance(value, str) and value in words, words)


FLAG = Kind("True or False", lambda value: isinstance(value, bool))
NONE = Kind("None", lambda value: value is None)
TEXT = Kind("text that is not empty", lambda value: isinstance(value, str) and bool(value.strip()))


def instance_of(kind: type | tuple[type, ...], must_be: str) -> Kind:
    """Return the kind of instances of a class or classes."""
    return Kind(must_be, lambda value: isinstance(value, kind))


def did_you_mean(given: object, words: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` if a text is similar to a word, else an empty text."""
    if not isinstance(given, str):
        return ""
    folded = {word.lower().replace("-", "_"): word for word in words}
    near = difflib.get_close_matches(given.lower().replace("-", "_"), folded, n=1)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""
