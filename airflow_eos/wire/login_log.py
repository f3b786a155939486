"""Keeps credentials out of kafka-python's log lines, at every log level.

At DEBUG kafka-python logs every request and every byte: passwords of SASL PLAIN, tokens of OAUTHBEARER, and
the proofs of SCRAM, which allow offline guesses of the password. A filter on the loggers replaces the content
of logins before any handler sees it, on the driver and in Python workers.
"""

from __future__ import annotations

import logging
from typing import Any

_CONNECTION, _PARSER = "kafka.net.connection", "kafka.protocol.parser"
_LOGIN = ("SaslAuthenticate", "SaslBytes")


class LoginFilter(logging.Filter):
    """Replaces login requests, login responses and raw bytes in a record's arguments; drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record's arguments and keep the record."""
        if isinstance(record.args, tuple):
            record.args = tuple(_cleaned(argument) for argument in record.args)
        return True


_FILTER = LoginFilter()


def hide_logins() -> None:
    """Install the filter on kafka-python's loggers; idempotent."""
    for name in (_CONNECTION, _PARSER):
        logging.getLogger(name).addFilter(_FILTER)


def _cleaned(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        # Any bytes may belong to a login: a response does not even name its request.
        return f"<{len(value)} bytes>"
    name = type(value).__name__
    return f"{name}(***)" if name.startswith(_LOGIN) else value
