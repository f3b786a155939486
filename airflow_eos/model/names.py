"""What names may be: of pipelines, groups, prefixes and topics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_eos.exceptions import ConfigurationError

# Topic, group and transactional ids share the broker's limits; a name ends up in all of them.
_NAME = re.compile(r"[A-Za-z0-9._\-]+")
NAME_LIMIT = 180
_PREFIX = re.compile(r"[A-Za-z0-9_\-]+")


def checked_prefix(prefix: str) -> str:
    """Return the prefix of transactional ids, which ends at the first dot of an id.

    :raises ConfigurationError: it holds a dot or something else that no prefix holds.
    """
    if not _PREFIX.fullmatch(prefix) or len(prefix) > NAME_LIMIT:
        raise ConfigurationError(
            f"prefix {prefix!r} must be 1 to {NAME_LIMIT} letters, digits, underscores or hyphens, without "
            "a dot: a transactional id's prefix ends at its first dot, and an ACL of one prefix must not "
            "cover another's ids"
        )
    return prefix


def checked_name(field: str, value: str) -> str:
    """Return the name of a pipeline or a group.

    :param field: what it is called where it was given, for the message.
    :raises ConfigurationError: it is none.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > NAME_LIMIT:
        raise ConfigurationError(
            f"{field} {value!r} must be 1 to {NAME_LIMIT} letters, digits, dots, underscores or "
            "hyphens: it becomes part of a transactional id"
        )
    return value


def checked_topics(field: str, value: Sequence[str]) -> Sequence[str]:
    """Return the names of topics, one or more.

    :param field: what they are called where they were given, for the message.
    :raises ConfigurationError: there is none, one is there twice, or they are one string.
    """
    if isinstance(value, str):
        raise ConfigurationError(
            f"{field} must be a sequence of topic names, got the string {value!r}; write ({value!r},)"
        )
    if not value or len(set(value)) != len(value) or not all(isinstance(one, str) and one for one in value):
        raise ConfigurationError(f"{field} needs distinct topic names, got {value!r}")
    return value
