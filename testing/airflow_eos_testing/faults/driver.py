"""The driver process of a test: ``python -m airflow_eos_testing.faults.driver <folder>``.

It starts one Spark session, then runs one attempt after the other, as commanded over a socket in its folder.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import RunFailed
from airflow_eos_testing.faults.channel import SOCKET, Channel
from airflow_eos_testing.faults.half_send import half_sending, is_half_written, let_go
from airflow_eos_testing.faults.held_run import HeldRun
from airflow_eos_testing.faults.points import HALF_WRITTEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_POLL = 0.02


class _Gate:
    """Holds a run at its points: reports each to the test, and waits for the release."""

    def __init__(self, channel: Channel, points: Collection[str]) -> None:
        self._channel = channel
        self._points = points
        self._go = threading.Event()
        self._open = False

    def reach(self, point: str) -> None:
        if point not in self._points or self._open:
            self._channel.send("reached", point)
            return
        self._go.clear()
        self._channel.send("held", point)
        self._go.wait()

    def release(self, *, finally_: bool) -> None:
        self._open = self._open or finally_
        self._go.set()


class _Driver:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._gate: _Gate | None = None

    def serve(self) -> None:
        """Run the requested attempts until the test closes the channel."""
        work = self._channel.receive()
        assert work is not None
        assert work[0] == "session"
        spark = _session(work[1])
        self._channel.send("ready", spark.sparkContext.applicationId if work[1]["remote"] is None else "")
        while (work := self._channel.receive()) is not None:
            if work[0] == "release":
                if self._gate is not None:
                    self._gate.release(finally_=work[1])
            elif work[0] == "run":
                # In a thread: releases for the run arrive over the channel meanwhile.
                self._gate = _Gate(self._channel, work[2])
                threading.Thread(target=self._run, args=(spark, work[1], work[2], self._gate)).start()
        os._exit(0)  # Spark's own shutdown would take seconds, and the session ends with us

    def _run(self, spark: Any, payload: bytes, points: Collection[str], gate: _Gate) -> None:
        try:
            spec, process = pickle.loads(payload)  # noqa: S301 - from the test that started this process
            with ExitStack() as stack:
                if HALF_WRITTEN in points:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    stack.enter_context(half_sending(folder))
                    ended = threading.Event()
                    stack.callback(ended.set)
                    threading.Thread(target=_stop_half_way, args=(folder, gate, ended), daemon=True).start()
                record = HeldRun(spark, spec, process, gate.reach).execute()
            self._channel.send("record", record)
        except BaseException as error:  # of any kind: the test decides what it means
            logging.getLogger(__name__).warning("the run failed", exc_info=True)
            self._channel.send("error", _picklable(error))


def _stop_half_way(folder: Path, gate: _Gate, ended: threading.Event) -> None:
    while not is_half_written(folder):
        if ended.wait(_POLL):
            return
    gate.reach(HALF_WRITTEN)
    if not ended.is_set():
        let_go(folder)


def _picklable(error: BaseException) -> BaseException:
    """Return the error if it survives pickling, else a RunFailed with its type and text."""
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - just made
    except Exception:  # noqa: BLE001 - pickling a foreign exception may raise anything
        again = None
    if type(again) is type(error) and str(again) == str(error):
        return error
    return RunFailed(f"{type(error).__name__}: {error}")


def _session(settings: Mapping[str, Any]) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if settings["remote"] is not None:
        from airflow_eos.spark.connect_client import retry_soon

        session = builder.remote(settings["remote"]).getOrCreate()
        retry_soon(session.client, settings["remote"])
        return session
    builder = builder.master(settings["master"]).appName("airflow-eos driver under test")
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    """Serve the test whose socket is in the folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("py4j", "kafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(Path(sys.argv[1]) / SOCKET))
    _Driver(Channel(connection)).serve()


if __name__ == "__main__":
    main()
