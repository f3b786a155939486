"""Quiets kafka-python's log, and keeps credentials out of its lines at every log level.

At DEBUG kafka-python logs every request and every byte: passwords of SASL PLAIN, tokens of OAUTHBEARER, and
the proofs of SCRAM, which allow offline guesses of the password. A filter on the loggers replaces the content
of logins before any handler sees it, on the driver and in Python workers.
"""

from __future__ import annotations

import logging
from typing import Any

_CONNECTION, _PARSER = "kafka.net.connection", "kafka.protocol.parser"
_LOGIN = ("SaslAuthenticate", "SaslBytes")


def quiet_logging() -> None:
    """Redact logins, and silence kafka-python, which logs every refused connection as an error; idempotent.

    It is not silenced where a log level is set.
    """
    for name in (_CONNECTION, _PARSER):
        logging.getLogger(name).addFilter(_redacted)
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _redacted(record: logging.LogRecord) -> bool:
    """Replace login requests, login responses and raw bytes in a record's arguments; drop no record."""
    if isinstance(record.args, tuple):
        record.args = tuple(_cleaned(argument) for argument in record.args)
    return True


def _cleaned(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        # Any bytes may belong to a login: a response does not even name its request.
        return f"<{len(value)} bytes>"
    name = type(value).__name__
    return f"{name}(***)" if name.startswith(_LOGIN) else value
