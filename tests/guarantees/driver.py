"""A driver in a separate process, without Spark: killed and paused by real signals, cheap to start.

The same protocol, wire layer and brokers as in production; only the executors are this one process. For a
driver with Spark see :class:`airflow_eos_testing.faults.RunProcess`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import RunSpec
from airflow_eos.run.states import State

_TIMEOUT = 120.0

# One clean process with everything imported; each driver is forked from it in some milliseconds.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.guarantees.driver", "tests.support.local_runs"])


class LocalDriver:
    """Starts an attempt that stops at the given states until it is released.

    :param plane: data plane class, importable by name.
    :param stop_at: states to stop at.
    :param without: names of laws that are removed in its process (:mod:`tests.guarantees.without_law`).
    :ivar times: the machine's monotonic time of each state that was waited for.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        plane: Any,
        stop_at: State | Collection[State] = (),
        without: Collection[str] = (),
    ) -> None:
        stops = frozenset({stop_at} if isinstance(stop_at, State) else stop_at)
        self._pipe, child_end = processes.Pipe()
        self._process = processes.Process(
            target=_drive, args=(spec, plane, stops, tuple(without), child_end), daemon=True
        )
        self._process.start()
        child_end.close()
        self.states: list[State] = []
        self.times: list[tuple[str, float]] = []
        self._end: tuple[str, Any] | None = None

    def wait_for(self, state: State) -> LocalDriver:
        """Wait until the state is entered."""
        while state not in self.states:
            assert self._end is None, f"ended before {state}: {self._end}"
            self._next()
        return self

    def release(self) -> None:
        """Let it go on from the state it stopped at."""
        self._pipe.send("go")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join(30)

    def pause(self) -> None:
        """SIGSTOP: all its threads stop, its connections stay open."""
        stop(self._process)

    def resume(self) -> None:
        """SIGCONT."""
        go_on(self._process)

    def result(self) -> RunRecord:
        """Wait for the end; return its record, or raise its error."""
        while self._end is None:
            self._next()
        kind, value = self._end
        self._process.join(30)
        if kind == "error":
            raise value
        return value

    def _next(self) -> None:
        if not self._pipe.poll(_TIMEOUT):
            raise AssertionError(f"nothing for {_TIMEOUT:.0f} s after {self.states}")
        kind, value = self._pipe.recv()
        if kind == "state":
            state, moment = value
            self.states.append(state)
            self.times.append((state.value, moment))
        else:
            self._end = (kind, value)


def stop(process: Any) -> None:
    """Send SIGSTOP and wait until the process has stopped."""
    os.kill(process.pid, signal.SIGSTOP)
    # It is a child of the fork server, not ours, so waitpid cannot tell.
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.005)


def go_on(process: Any) -> None:
    """SIGCONT."""
    os.kill(process.pid, signal.SIGCONT)


def _drive(spec: RunSpec, plane: Any, stops: frozenset[State], without: tuple[str, ...], pipe: Any) -> None:
    from airflow_eos.engine.control_plane import ControlPlane
    from airflow_eos.run.protocol import RunProtocol
    from tests.guarantees.without_law import remove, remove_from_environment

    remove_from_environment()
    for law in without:
        remove(law)
    logging.disable(logging.CRITICAL)
    stopped: set[State] = set()

    def on_state(state: State) -> None:
        pipe.send(("state", (state, time.monotonic())))
        if state in stops and state not in stopped:
            stopped.add(state)
            pipe.recv()

    try:
        with ControlPlane(spec) as control:
            record = RunProtocol(spec, control.collaborators(plane(spec)), on_state).execute()
    except Exception as error:
        pipe.send(("error", error))
    else:
        pipe.send(("record", record))


def in_a_process(target: Any, *arguments: Any) -> int | None:
    """Call an importable function in a process of its own; return its exit code, -9 after SIGKILL."""
    process = processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    process.join(_TIMEOUT)
    assert process.exitcode is not None
    return process.exitcode
