"""Warm drivers, so that the run after a killed driver need not wait for Spark's cold start."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from airflow_eos_testing.faults import DriverProcess, SparkCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

_TIMEOUT = 180.0
_CLUSTER_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # Executors are repeatedly killed on purpose.
    "spark.excludeOnFailure.enabled": "false",
}


class DriverPool:
    """A pool of warm drivers; a dead one is replaced in the background.

    :param spare: number of drivers to keep warm.
    :param cluster: a standalone cluster on which each of them has two executors; default: ``local[2]``.
    """

    def __init__(self, spare: int = 2, cluster: SparkCluster | None = None) -> None:
        self._spare = spare
        self._cluster = cluster
        self._idle: deque[DriverProcess] = deque()
        self._all: list[DriverProcess] = []
        self._starting = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._closed = False

    def __enter__(self) -> Self:
        with self._changed:
            self._refill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._starting, _TIMEOUT)
        for driver in self._all:
            driver.close()

    def take(self) -> DriverProcess:
        """Return a running, idle driver; the caller must :meth:`give_back` it."""
        with self._changed:
            self._refill()
            self._changed.wait_for(lambda: self._idle or self._failure, _TIMEOUT)
            if not self._idle:
                raise RuntimeError("no driver started") from self._failure
            return self._idle.popleft()

    @contextmanager
    def lent(self) -> Iterator[DriverProcess]:
        """Take a driver for the duration of a ``with`` block."""
        driver = self.take()
        try:
            yield driver
        finally:
            self.give_back(driver)

    def give_back(self, driver: DriverProcess) -> None:
        """Return a driver to the pool; a dead or busy one is replaced in the background."""
        with self._changed:
            if driver.is_alive and not driver.is_busy:
                self._idle.append(driver)
            else:
                self._all.remove(driver)
                driver.close()
                self._refill()
            self._changed.notify_all()

    def _refill(self) -> None:
        while len(self._all) + self._starting < self._spare:
            self._starting += 1
            threading.Thread(target=self._start, daemon=True).start()

    def _new(self) -> DriverProcess:
        if self._cluster is None:
            return DriverProcess()
        return DriverProcess(self._cluster.master, conf=_CLUSTER_CONF)

    def _start(self) -> None:
        driver: DriverProcess | None = None
        try:
            driver = self._new()
            driver.wait_ready()
            if self._cluster is not None:
                self._cluster.wait_for_executors(2, driver.application_id)
        except BaseException as error:  # noqa: BLE001 - raised when the next driver is taken
            self._failure = error
        with self._changed:
            self._starting -= 1
            if driver is not None:
                self._all.append(driver)
                self._idle.append(driver)
            self._changed.notify_all()


class ClusterDriver:
    """A standalone cluster of two workers and one driver on it, both started on first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: tuple[SparkCluster, DriverProcess] | None = None

    def get(self) -> tuple[SparkCluster, DriverProcess]:
        """Return the cluster, with two executors, and its driver."""
        if self._started is None:
            cluster = self._stack.enter_context(SparkCluster())
            driver = self._stack.enter_context(DriverProcess(cluster.master, conf=_CLUSTER_CONF))
            self._started = cluster, driver
        if self._started[1].is_busy or not self._started[1].is_alive:
            self.close()
            return self.get()
        cluster, driver = self._started
        driver.wait_ready()
        cluster.wait_for_executors(2, driver.application_id)
        return self._started

    def close(self) -> None:
        """Stop both."""
        self._stack.close()
        self._started = None
