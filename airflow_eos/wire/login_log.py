"""Keeps credentials out of kafka-python's own log lines, whatever level its loggers have.

At DEBUG kafka-python writes every request and every byte: passwords of SASL PLAIN, tokens of OAUTHBEARER, and
the proofs of SCRAM, against which passwords can be tried offline. What it logs of a login is replaced here,
on the loggers themselves: so no handler sees it, on the driver or in a Python worker.
"""

from __future__ import annotations

import logging
from typing import Any

_CONNECTION, _PARSER = "kafka.net.connection", "kafka.protocol.parser"
_LOGIN = ("SaslAuthenticate", "SaslBytes")


class LoginFilter(logging.Filter):
    """Replaces requests and answers of a login, and raw bytes, in a record's arguments; drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean the record and let it pass."""
        if isinstance(record.args, tuple):
            record.args = tuple(_cleaned(argument) for argument in record.args)
        return True


_FILTER = LoginFilter()


def hide_logins() -> None:
    """Clean what kafka-python logs from now on; harmless when repeated."""
    for name in (_CONNECTION, _PARSER):
        logging.getLogger(name).addFilter(_FILTER)


def _cleaned(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        # Any of them may be a login: an answer does not even say to which request.
        return f"<{len(value)} bytes>"
    name = type(value).__name__
    return f"{name}(***)" if name.startswith(_LOGIN) else value
