"""Keeps credentials out of the logs of PySpark's clients at any level.

Tasks contain client settings with passwords, as pickled bytes. At DEBUG, py4j logs each command to the JVM,
bytes in base64, and Spark Connect's client (``SPARK_CONNECT_LOG_LEVEL``) each plan.
"""

from __future__ import annotations

import logging
import re

_LOGGERS = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")
# py4j: a type letter and base64. Connect: protobuf's text form, where bytes are quoted and escaped.
_LONGEST = 80
_BASE64 = re.compile(rf"[A-Za-z0-9+/=]{{{_LONGEST + 1},}}")
_QUOTED = re.compile(rf'"(?:[^"\\]|\\.){{{_LONGEST + 1},}}"?', re.DOTALL)


def _cleaned(record: logging.LogRecord) -> bool:
    """Shorten long base64 and long quoted texts in a message; keep every record."""
    message = record.getMessage()
    if len(message) > _LONGEST:
        cut = _QUOTED.sub(_cut, _BASE64.sub(_cut, message))
        if cut is not message:
            record.msg, record.args = cut, ()
    return True


def hide_tasks() -> None:
    """Filter the logs of PySpark's clients from now on; idempotent."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_cleaned)


def _cut(match: re.Match[str]) -> str:
    return f"<{len(match[0])} characters>"
