"""Recognises refused logins to PostgreSQL, which reach a client without an SQLSTATE."""

from __future__ import annotations

import re

_REFUSED = re.compile(
    r"(password|SASL) authentication failed|no password supplied|no pg_hba\.conf entry|"
    r"is not permitted to log in|(role|database) \".*\" does not exist|no such (user|database)"
)
_EACH_HOST = "\n- host: "
"""Precedes the error of each host if there are several."""


def is_refused_login(error_text: str) -> bool:
    """Return whether servers, poolers or libpq refused a login, on every host; recognises only English."""
    _, *of_hosts = error_text.split(_EACH_HOST)
    return all(map(_REFUSED.search, of_hosts or [error_text]))
