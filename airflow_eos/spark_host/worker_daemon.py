"""PySpark's daemon, from which Python workers fork: with their imports done, and gone when nobody needs it.

``spark.python.daemon.module`` of our server and of the local sessions that tasks start. Spark gives each
session a daemon of its own, so modules of another session, or of an older release, are never found in it; but
it would keep the daemon until the server ends, long after the session. One that has had no worker for a while
ends itself; Spark starts another one where it is needed after all. Nothing of a Dag's is imported here.
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
"""After the last worker, which Spark ends when it was idle for a minute."""
_LOOK = 5.0


def preload() -> None:
    """Import the modules that exist; the worker that needs a missing one reports it."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def end_when_idle(
    seconds: float = IDLE_SECONDS, look: float = _LOOK, end: Callable[[int], object] = os._exit
) -> None:
    """End this process when it has had no child for so long; a fork has neither the timer nor this end.

    A timer and no thread: Spark's loop forks.
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
    """Wrap PySpark's loop over the tasks of a worker: closed by the JVM it has an exit code, not a trace.

    Spark closes the socket of a worker that was idle for a minute, or that it wants no more of.
    """

    def quiet(sock: socket.socket, authenticated: bool) -> int:
        sys.unraisablehook = report_unless_closed  # of this fork
        try:
            return worker(sock, authenticated)
        except BrokenPipeError:
            return os.EX_IOERR

    return quiet


def report_unless_closed(unraisable: Any) -> None:
    """Report the error of a finalizer, unless it is of a file whose socket Spark has closed.

    The worker's output still holds bytes then, and from Python 3.13 on a file reports that they are lost.
    """
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


def send_encodable(handle: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``pyspark.worker.handle_worker_exception``: it escapes text that UTF-8 cannot hold.

    PySpark announces an exception before it encodes its text. Where that fails, as with half of a surrogate
    pair (``U+D83D`` alone), Spark waits for the text, and the worker for Spark to close the socket, for ever.
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
    gc.freeze()  # a worker's garbage collection would go through all that was imported, and copy its pages
    worker.handle_worker_exception = send_encodable(worker.handle_worker_exception)
    end_when_idle()
    daemon.worker = end_quietly(daemon.worker)
    daemon.manager()
