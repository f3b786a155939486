"""Validation of the names of pipelines, groups, prefixes and topics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.versioned import is_topic_name

NAME_BYTES = 8_000
"""Maximum UTF-8 bytes in the name of a pipeline or a group. Quoted, with prefix and topic, it fits into a
transactional id of at most 32,767 bytes: its length is an int16 in requests and in the coordinator's log."""
PREFIX_LIMIT = 180
"""Maximum number of characters in a prefix, and in an origin."""
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")


def checked_prefix(prefix: str) -> str:
    """Return the prefix of transactional ids, which ends at the first dot of an id.

    :raises ConfigurationError: it contains a dot or another invalid character, or is too long.
    """
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be text, got {prefix!r}{_number_hint(prefix)}")
    if not _PREFIX.fullmatch(prefix) or len(prefix) > PREFIX_LIMIT:
        raise ConfigurationError(
            f"prefix {prefix!r} must be 1 to {PREFIX_LIMIT} letters, digits, underscores or hyphens, without "
            "a hyphen in front and without a dot: a transactional id's prefix ends at its first dot, and an "
            "ACL of one prefix must not cover another's ids"
        )
    return prefix


def checked_name(field: str, value: str) -> str:
    """Return the name of a pipeline or a group: any text, as for Kafka and Airflow.

    :param field: name of the parameter, for errors.
    :raises ConfigurationError: it is not text, empty, too long, not valid Unicode, or contains NUL.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{field} must be text, got {value!r}{_number_hint(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{field} {value!r} is not valid Unicode: it has no UTF-8 form") from None
    if not 1 <= size <= NAME_BYTES or "\0" in value:
        raise ConfigurationError(
            f"{field} {value if size < NAME_BYTES else value[:40]!r} must have 1 to {NAME_BYTES:,} bytes of "
            f"UTF-8 and no NUL character, it has {size:,} bytes: it becomes part of a transactional id"
        )
    return value


def checked_topic(field: str, value: str) -> str:
    """Return the name of a topic.

    :param field: name of the parameter, for errors.
    :raises ConfigurationError: Kafka does not allow the name.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{field} must be the name of a topic, got {value!r}{_number_hint(value)}")
    if not is_topic_name(value):
        raise ConfigurationError(
            f"{field} {value!r} is not the name of a topic: Kafka allows 1 to 249 letters, digits, dots, "
            f"underscores and hyphens, but not '.' and '..'{_topic_hint(value)}"
        )
    return value


def _topic_hint(value: str) -> str:
    """Return the advice for a text that looks like several topics, or like a pattern."""
    if "," in value:
        listed = [name.strip() for name in value.split(",") if name.strip()]
        return f". Names of several topics are a list: {listed!r}"
    if any(character in value for character in "*^$|?+\\[]()"):
        return ". Topics are named one by one: patterns are not supported"
    return ""


def checked_topics(field: str, value: Sequence[str]) -> Sequence[str]:
    """Return the names of topics, one or more.

    :param field: name of the parameter, for errors.
    :raises ConfigurationError: the sequence is empty, a string, has duplicates, or an invalid topic name.
    """
    if isinstance(value, str):
        raise ConfigurationError(
            f"{field} must be a sequence of topic names, got the string {value!r}; write ({value!r},)"
        )
    if not isinstance(value, Sequence):
        raise ConfigurationError(f"{field} must be a sequence of topic names, got {value!r}")
    if not value:
        raise ConfigurationError(f"{field} needs distinct topic names, got {value!r}")
    for name in value:
        checked_topic(field, name)
    if len(set(value)) != len(value):
        raise ConfigurationError(f"{field} needs distinct topic names, got {value!r}")
    return value


def _number_hint(value: object) -> str:
    """Return the hint for a name that a native template has rendered as a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    return (
        ": where templates are rendered as native objects a name made of digits is a number; give the Dag "
        "render_template_as_native_obj=False, or a name that is not made of digits"
    )
