"""The same pipeline under a real scheduler: its task is SIGKILLed at each state and retried by Airflow.

A task has no hook to hold it. It is held from outside: by its own executors, which wait at a gate, and by the
proxy, which holds the request that leads from one state to the next.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.run.states import State
from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection
from chaos.playground import SINK, Playground
from chaos.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_eos_testing.faults import ProxyFault

DAG, TASK = "chaos_copy", "copy"
_TIMEOUT = 240.0
_NEXT_TRY = 2
_ROOT = Path(__file__).resolve().parent
_POLL = 0.1
# A retry that waits for a slow scheduler loop would measure Airflow, not the recovery.
_ENV = {
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    # The file never changes: reparsing it would cost a tenth of the machine.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
}


class AirflowTasks:
    """Runs the pipeline as tasks of a real Airflow, which is started on first use."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        self._stack = ExitStack()
        self._airflow: AirflowStandalone | None = None
        self._folder = Path()
        self._count = 0

    def close(self) -> None:
        """Stop Airflow."""
        self._stack.close()
        self._airflow = None

    def kill_at(self, state: State) -> Outcome:
        """Hold the task at the state, kill it with its descendants, and wait for the retry's success."""
        airflow = self._started()
        self._count += 1
        run_id = f"airflow-{self._count:03d}"
        self._playground.wait_for_input()
        with self._held(state, run_id, airflow):
            airflow.kill_task(DAG, run_id, TASK, tree=True)
            begun = time.monotonic()
        state_of_run = airflow.wait_for_run(DAG, run_id, timeout=_TIMEOUT)
        seconds = time.monotonic() - begun
        last = airflow.task(DAG, run_id, TASK)["try_number"]
        if state_of_run != "success":
            raise RuntimeError(f"{run_id} ended as {state_of_run}\n{self._log(run_id, last)}")
        if last < _NEXT_TRY:
            raise RuntimeError(f"{run_id}: the try that was killed has ended well\n{self._log(run_id, last)}")
        is_found = airflow.xcom(DAG, run_id, TASK)["found"]
        # A later try may find a commit of the second one that the second one did not report.
        if last == _NEXT_TRY and is_found != (state is State.COMMITTED):
            outcome = "found a commit" if is_found else "committed again"
            raise RuntimeError(f"{run_id}: the next try {outcome}\n{self._log(run_id, last)}")
        return Outcome(f"scheduler's try {last} {'found the commit' if is_found else 'committed'}", seconds)

    def _started(self) -> AirflowStandalone:
        if self._airflow is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            airflow = AirflowStandalone(
                _ROOT / "dags",
                connections={"kafka_default": kafka_connection(self._playground.proxy.bootstrap_servers)},
                env={**_ENV, "EOS_CHAOS_FOLDER": str(self._folder)},
            )
            self._airflow = self._stack.enter_context(airflow)
            self._airflow.wait_for_dag(DAG)
        return self._airflow

    @contextmanager
    def _held(self, state: State, run_id: str, airflow: AirflowStandalone) -> Iterator[None]:
        """Trigger a run and hold its task at the state; drop the held request at the end of the block."""
        gate = self._folder / "hold"
        if state is State.PLANNED:
            gate.touch()
            try:
                airflow.trigger(DAG, run_id)
                self._wait_for_log(airflow, run_id, "state PLANNED")
                yield
            finally:
                gate.unlink()
            return
        fault = self._hold(state)
        try:
            airflow.trigger(DAG, run_id)
            fault.wait(_TIMEOUT)
            while state is State.COMMITTED and not self._playground.is_committed():
                # The coordinator has moved and refused: let that answer pass and hold the next one.
                refused, fault = fault, self._hold(state)
                refused.cancel()
                fault.wait(_TIMEOUT)
            yield
        finally:
            fault.release(drop=True)
            fault.cancel()

    def _hold(self, state: State) -> ProxyFault:
        """Hold the request, or the answer, between this state and the next."""
        proxy, name = self._playground.proxy, self._playground.transactional_id
        if state is State.FENCED:
            return proxy.hold("InitProducerId", None, response=True, containing=name)
        if state is State.SEALED:
            return proxy.hold("AddPartitionsToTxn", None, containing=name)
        if state is State.OPEN:
            return proxy.hold("Produce", None, containing=SINK)
        if state is State.WRITTEN:
            return proxy.hold("AddOffsetsToTxn", None, containing=name)
        if state is State.STAGED:
            return proxy.hold("DescribeProducers", None)
        return proxy.hold("EndTxn", None, response=state is State.COMMITTED, containing=name)

    def _wait_for_log(self, airflow: AirflowStandalone, run_id: str, text: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while text not in airflow.task_log(DAG, run_id, TASK, 1):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{run_id} does not log {text!r}\n{self._log(run_id, 1)}")
            time.sleep(_POLL)

    def _log(self, run_id: str, number: int) -> str:
        assert self._airflow is not None
        return self._airflow.task_log(DAG, run_id, TASK, number)[-6000:]
