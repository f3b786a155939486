"""Airflow's exceptions that an author's function may raise to skip the task, or to fail it for good.

Executors need not have Airflow, and nothing below the Airflow layer imports it: there its exceptions are
identified by the qualified names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Signal = Literal["skip", "fail"]

_SIGNALS: dict[str, Signal] = {
    "airflow.exceptions.AirflowFailException": "fail",
    "airflow.exceptions.AirflowSkipException": "skip",
    "airflow.sdk.exceptions.AirflowFailException": "fail",
    "airflow.sdk.exceptions.AirflowSkipException": "skip",
}


def class_names(error: BaseException) -> tuple[str, ...]:
    """Return the qualified names of an exception's class and of its bases."""
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__[:-1])


def signal_of(names: Iterable[str]) -> Signal | None:
    """Return the signal of an exception with these class names; None if it is an ordinary failure."""
    return next((_SIGNALS[name] for name in names if name in _SIGNALS), None)
