"""A run in a driver process of its own that a test can hold at a point, kill, freeze and resume."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.closeable import Closeable
from airflow_eos_testing.faults.driver_process import DriverProcess

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.run.states import State


class RunProcess(Closeable):
    """One attempt in a fresh process; a context manager that leaves nothing behind.

    ::

        with RunProcess(spec, process, stop_at=State.OPEN) as run:
            run.wait_for(State.OPEN)
            run.kill()

    :param spec: the run.
    :param process: the author's function.
    :param stop_at: one or several points (:mod:`airflow_eos_testing.faults.points`) at which it is held.
    :param driver: a running driver, in place of a fresh one; it is left running.
    """

    def __init__(
        self,
        spec: RunSpec,
        process: Callable[..., Any],
        *,
        master: str = "local[2]",
        remote: str | None = None,
        conf: Mapping[str, str] | None = None,
        stop_at: State | str | Collection[State | str] | None = None,
        driver: DriverProcess | None = None,
    ) -> None:
        self.driver = driver or DriverProcess(master, remote=remote, conf=conf)
        self._owns_driver = driver is None
        try:
            self.attempt = self.driver.run(spec, process, stop_at=stop_at)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, if it is this run's own."""
        if self._owns_driver:
            self.driver.close()

    def wait_for(self, point: State | str, timeout: float = 120.0) -> None:
        """Wait until the run is held at the point; errors as :meth:`Attempt.wait_for`."""
        self.attempt.wait_for(point, timeout)

    def release(self, *, for_good: bool = False) -> None:
        """Let the run go on to its next point, or to its end."""
        self.attempt.release(for_good=for_good)

    def result(self, timeout: float = 180.0) -> RunRecord:
        """Return the record, or raise the run's own error; errors as :meth:`Attempt.result`."""
        return self.attempt.result(timeout)

    def kill(self) -> None:
        """SIGKILL the driver and its descendants."""
        self.driver.kill()

    def pause(self) -> None:
        """Freeze the driver (SIGSTOP)."""
        self.driver.pause()

    def resume(self) -> None:
        """Continue the frozen driver (SIGCONT)."""
        self.driver.resume()

    @property
    def trace(self) -> list[tuple[str, float]]:
        """Points reached so far, with monotonic times."""
        return self.attempt.trace

    @property
    def log(self) -> str:
        """What the process has logged."""
        return self.driver.log
