"""PySpark's daemon for Python workers, which are forked with their imports done; it exits when idle.

It is ``spark.python.daemon.module`` of our server and of the local sessions that tasks start. Spark gives
each session its own daemon, so a worker never finds modules of another session or of an older release; but
Spark would keep the daemon until the server ends, long after the session. A daemon without workers for a
while ends itself; Spark starts another one if needed. It imports nothing of a Dag.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, Any

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pandas",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.types",
    "pyspark.worker",
    "google_crc32c",
    "airflow_eos.spark.probe",
    "airflow_eos.spark.seal_task",
    "airflow_eos.spark.send_task",
    "airflow_eos.wire.fetch",
    "airflow_eos.wire.produce",
)
IDLE_SECONDS = 30.0
"""Seconds after the end of the last worker, which Spark ends after an idle minute."""
_LOOK = 5.0


def preload() -> None:
    """Import the modules that exist; the worker that needs a missing one reports it."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def end_when_idle(
    seconds: float = IDLE_SECONDS, look: float = _LOOK, end: Callable[[int], object] = os._exit
) -> None:
    """End this process when it has had no child for ``seconds``; forks do not inherit the timer.

    A timer, not a thread: Spark's loop forks.
    """
    last_child = time.monotonic()

    def look_around(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_child
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            last_child = time.monotonic()
        except ChildProcessError:
            if time.monotonic() - last_child >= seconds:
                end(0)

    signal.signal(signal.SIGALRM, look_around)
    signal.setitimer(signal.ITIMER_REAL, look, look)


def end_quietly(worker: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """Wrap PySpark's task loop: if the JVM closes the socket, return an exit code without a traceback.

    Spark closes the socket of a worker that was idle for a minute or that it no longer needs.
    """

    def quiet(sock: socket.socket, authenticated: bool) -> int:
        sys.unraisablehook = report_unless_closed  # of this fork
        try:
            return worker(sock, authenticated)
        except BrokenPipeError:
            return os.EX_IOERR

    return quiet


def report_unless_closed(unraisable: Any) -> None:
    """Report the error of a finalizer, unless it is about a file whose socket Spark has closed.

    The worker's output buffer still has bytes then, and since Python 3.13 a file reports that they are lost.
    """
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


def send_encodable(handle: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``pyspark.worker.handle_worker_exception`` so that it escapes text that UTF-8 cannot encode.

    PySpark announces an exception before it encodes its text. If that fails, as with half of a surrogate pair
    (``U+D83D`` alone), Spark waits for the text, and the worker for Spark to close the socket, forever.
    """

    def sent(error: BaseException, outfile: IO[bytes], *more: Any) -> None:
        text = traceback.format_exc()
        try:
            text.encode()
        except UnicodeEncodeError:
            from pyspark.serializers import SpecialLengths, write_int, write_with_length

            with suppress(OSError):  # Spark has closed the socket
                write_int(SpecialLengths.PYTHON_EXCEPTION_THROWN, outfile)
                write_with_length(text.encode("utf-8", "backslashreplace"), outfile)
        else:
            handle(error, outfile, *more)

    return sent


if __name__ == "__main__":
    from pyspark import daemon, worker

    preload()
    gc.freeze()  # a worker's garbage collection would traverse all imported objects, and copy their pages
    worker.handle_worker_exception = send_encodable(worker.handle_worker_exception)
    end_when_idle()
    daemon.worker = end_quietly(daemon.worker)
    daemon.manager()
