"""The standard error of a JVM that starts here, without the first lines of every JVM of Spark.

A task log marks all that stands there as an error, and these lines come before any setting of a log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

HARMLESS = (
    b"WARNING: Using incubator modules",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"Picked up JDK_JAVA_OPTIONS",
)
_FIRST_LINES = 10
_CHUNK = 65_536
_OUT, _ERR = 1, 2


@contextlib.contextmanager
def sorted_first_lines() -> Iterator[None]:
    """Send the harmless first lines of a process that is started meanwhile to standard output.

    What is started inherits a pipe as its standard error for as long as it lives; a thread passes on what
    comes, the first lines one by one, all else as it is. Without a standard error nothing is changed.
    """
    try:
        kept = os.dup(_ERR)
    except OSError:
        yield
        return
    reading, writing = os.pipe()
    _flush()
    os.dup2(writing, _ERR)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, kept), name="jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        _flush()
        # The thread closes the other descriptor, when the last one that inherited the pipe has ended.
        os.dup2(kept, _ERR)


def _flush() -> None:
    # Python's own may be none, closed, or gone: then it holds nothing that could come late.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


def _pass_on(reading: int, kept: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(kept, "wb", buffering=0) as error:
        # Standard error may be gone before a JVM is.
        with contextlib.suppress(OSError):
            for _ in range(_FIRST_LINES):
                line = lines.readline()
                _write(_OUT if line.startswith(HARMLESS) else error.fileno(), line)
        _drain(lines, error)


def _drain(lines: BinaryIO, error: BinaryIO) -> None:
    while chunk := lines.read1(_CHUNK):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            _write(error.fileno(), chunk)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
