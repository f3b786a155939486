"""Reads what the ledger holds: JSON with a version, from whoever may write to the topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from airflow_eos.exceptions import LedgerUnreadable

T = TypeVar("T")
_SHOWN = 60


def read_versioned(
    kind: str,
    value: str | bytes | Mapping[str, Any],
    versions: Collection[int],
    build: Callable[[Mapping[str, Any]], T],
    key: str = "",
) -> T:
    """Build a record from its JSON form.

    :param kind: what it is, for the message.
    :param value: JSON text, or what it was parsed to.
    :param versions: those that ``build`` knows.
    :param key: of the ledger record, for the message.
    :raises LedgerUnreadable: it is not JSON, of another version, or lacks what such a record has.
    """
    name = f"{kind} {key!r}" if key else kind
    if place := getattr(value, "place", ""):
        name = f"{name} ({place})"
    try:
        data = value if isinstance(value, Mapping) else json.loads(value)
        version = data["v"]
        if version in versions:
            return build(data)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        shown = str(value)[:_SHOWN]
        raise LedgerUnreadable(
            f"the ledger's {name} cannot be read ({type(error).__name__}: {error}), it begins {shown!r}; "
            "see who else writes to the ledger topic"
        ) from error
    raise LedgerUnreadable(
        f"the ledger's {name} has version {version!r}, this package reads {', '.join(map(str, versions))}: "
        "a newer airflow-eos wrote it, upgrade this one"
    )


def has_version(value: str) -> bool:
    """Tell whether a ledger value has a version, known or not; it may lack all else."""
    try:
        return type(json.loads(value)["v"]) is int
    except (LookupError, RecursionError, TypeError, ValueError):
        return False


def integer(value: Any) -> int:
    """Return a value that must be a JSON integer.

    :raises TypeError: it is something else, which ``int()`` might have taken.
    """
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def text(value: Any) -> str:
    """Return a value that must be a JSON string.

    :raises TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value
