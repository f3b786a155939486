"""Filters the standard error of a JVM that starts here: the usual first lines go to standard output.

A task log marks standard error as errors, and the JVM prints these lines before any logging configuration.

PySpark waits forever for a JVM that cannot write its port to the temporary folder, for example if the locale
cannot encode the folder's name. Such a JVM is killed after it has printed the reason.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

HARMLESS = (
    b"WARNING: Using incubator modules",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"Picked up JDK_JAVA_OPTIONS",
)
_MAIN_FAILED = b'Exception in thread "main"'
_JVM = "pyspark-shell"
_FIRST_LINES = 10
_CHUNK = 65_536
_LAST_WORDS = 1.0  # seconds for the rest of its output
_OUT, _ERR = 1, 2


@contextlib.contextmanager
def sorted_first_lines() -> Iterator[None]:
    """Send the harmless first lines of a process that is started in this block to standard output.

    The process inherits a pipe as its standard error for its whole life; a thread forwards the first lines
    one by one, and all other output unchanged. Without a standard error nothing is changed.
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
    is_started = threading.Event()
    arguments = (reading, kept, is_started)
    threading.Thread(target=_pass_on, args=arguments, name="jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        is_started.set()
        _flush()
        # The thread closes the other descriptor when the last process that inherited the pipe has ended.
        os.dup2(kept, _ERR)


def _flush() -> None:
    # sys.stderr may be None or closed: then it has no buffered output.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


def _pass_on(reading: int, kept: int, is_started: threading.Event) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(kept, "wb", buffering=0) as error:
        # Standard error may be closed before the JVM ends.
        with contextlib.suppress(OSError):
            for _ in range(_FIRST_LINES):
                line = lines.readline()
                _write(_OUT if line.startswith(HARMLESS) else error.fileno(), line)
                _kill_if_failed(line, is_started)
        while chunk := lines.read1(_CHUNK):
            with contextlib.suppress(OSError):
                _write(error.fileno(), chunk)
            _kill_if_failed(chunk, is_started)


def _kill_if_failed(output: bytes, is_started: threading.Event) -> None:
    """Kill a JVM whose main thread has failed before PySpark knows its port: other threads keep it alive."""
    if _MAIN_FAILED not in output or is_started.wait(_LAST_WORDS):
        return
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if _JVM in child.cmdline():
                child.kill()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
