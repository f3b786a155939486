"""Waits for a Spark driver on a cluster, without a worker slot."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_eos.compat import to_thread
from airflow_eos.model.ranges import utc_now
from airflow_eos.run.kill import KillBudget
from airflow_eos.triggers.condition import SerializedTrigger

if TYPE_CHECKING:
    from airflow_eos.hooks.spark_driver import Backend, SparkDriver

log = logging.getLogger(__name__)

ON_KILL_SECONDS = 20.0
"""Limit of a kill: a triggerer waits 30 s (``on_kill_timeout``), and the first request takes several."""
_POLLS_TO_BE_MISSING = 3
_DEFERRED = "deferred"


@dataclass(kw_only=True, eq=False, repr=False)
class SparkDriverTrigger(SerializedTrigger):
    """Fire when a driver in cluster mode has ended.

    The event is ``{"driver_id", "status", "succeeded"}``: a reason to read the ledger, not the outcome. A
    driver can fail after its commit, or be reported as finished without one. ``status`` is ``UNREACHABLE``
    if ``max_failures`` polls in a row failed, ``NOT_FOUND`` if the cluster manager did not know the driver in
    three polls in a row, ``TIMED_OUT`` if the driver was killed at the ``deadline``.

    The first poll comes after ``poll_interval``: Airflow 3.3 may fail a try whose trigger fires before the
    scheduler has seen the end of the process that deferred it (apache/airflow#72716).

    When a user marks the deferred task, or clears it, the driver is killed (``on_kill``). A triggerer that is
    restarted, or that has lost the task to another one, does not kill it.

    :param backend: ``standalone``, ``yarn`` or ``kubernetes``.
    :param driver_id: submission id, application id, or ``<namespace>:<driver pod>``.
    :param conn_id: Spark connection.
    :param poll_interval: seconds between two polls.
    :param max_failures: consecutive failed polls after which the driver counts as unreachable.
    :param user: YARN's user of the application; default: this process's.
    :param deadline: ISO time with a zone at which the driver is killed; None: never.
    """

    backend: Backend
    driver_id: str
    conn_id: str = "spark_default"
    poll_interval: float = 10.0
    max_failures: int = 10
    user: str | None = None
    deadline: str | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        failures = missing = 0
        while True:
            await asyncio.sleep(self.poll_interval)
            if self.deadline is not None and utc_now() >= dt.datetime.fromisoformat(self.deadline):
                await self._end(KillBudget(ON_KILL_SECONDS))
                yield self._event("TIMED_OUT", succeeded=False)
                return
            try:
                driver = await to_thread(f"spark {self.conn_id}", self._driver)
                status = await to_thread(f"spark {self.conn_id}", driver.status)
                failures = 0
            except Exception as error:  # noqa: BLE001 - after any error the cluster may answer next time
                failures += 1
                log.warning(
                    "Driver %s, failed poll %d of %d: %s", self.driver_id, failures, self.max_failures, error
                )
                if failures >= self.max_failures:
                    yield self._event("UNREACHABLE", succeeded=False)
                    return
                continue
            log.info("Driver %s: %s", self.driver_id, status)
            missing = missing + 1 if status == "NOT_FOUND" else 0
            if not driver.is_running(status) and missing in (0, _POLLS_TO_BE_MISSING):
                yield self._event(status, succeeded=driver.succeeded(status))
                return

    async def on_kill(self) -> None:
        """Kill the driver, unless the task still waits for it; returns within 20 s and never raises.

        Airflow calls this for actions of a user, and in a triggerer that was unresponsive for so long that
        another one has taken over its triggers. It cancels the call each second until it has returned.
        """
        ending = asyncio.ensure_future(self._end_unless_deferred(KillBudget(ON_KILL_SECONDS)))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ending])

    async def _end_unless_deferred(self, budget: KillBudget) -> None:
        if await self._is_deferred(budget):
            log.warning(
                "Driver %s is left alone: its task is still deferred, so another triggerer waits for it, or "
                "a later try has ended it. This triggerer sent no heartbeat for a while",
                self.driver_id,
            )
            return
        await self._end(budget)

    async def _is_deferred(self, budget: KillBudget) -> bool:
        """Return whether the task is deferred; False if Airflow does not answer."""
        try:
            question = to_thread("airflow", state_of, self.task_instance)
            state = await asyncio.wait_for(question, budget.left(keep=ON_KILL_SECONDS / 2))
        except Exception as error:  # noqa: BLE001 - a driver whose task a user has ended must not go on
            log.warning("Airflow could not be asked for the state of the task: %r", error)
            return False
        return state == _DEFERRED

    async def _end(self, budget: KillBudget) -> None:
        try:
            killed = to_thread(f"kill {self.conn_id}", self._kill, budget)
            await asyncio.wait_for(killed, budget.left())
        except Exception as error:  # noqa: BLE001 - the coordinator aborts its transaction after the time-out in any case
            log.warning("Driver %s could not be killed: %r", self.driver_id, error)

    def _driver(self) -> SparkDriver:
        from airflow_eos.hooks.spark_driver import SparkDriver

        return SparkDriver(self.backend, self.driver_id, self.conn_id, user=self.user)

    def _kill(self, budget: KillBudget) -> None:
        self._driver().kill(budget.left())
        log.info("Driver %s was killed", self.driver_id)

    def _event(self, status: str, *, succeeded: bool) -> TriggerEvent:
        return TriggerEvent({"driver_id": self.driver_id, "status": status, "succeeded": succeeded})


def state_of(instance: Any) -> str | None:
    """Return the state of a task instance in Airflow's database; None without a state or row. Blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=instance.dag_id,
        task_ids=[instance.task_id],
        run_ids=[instance.run_id],
        map_index=instance.map_index,
    )
    name = instance.task_id if instance.map_index < 0 else f"{instance.task_id}_{instance.map_index}"
    state: str | None = states.get(instance.run_id, {}).get(name)
    return state
