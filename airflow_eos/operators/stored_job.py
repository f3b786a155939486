"""The Spark job of a task in Airflow's task state store, which keeps it from one try to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_eos.hooks.spark_driver import SparkDriver

log = logging.getLogger(__name__)

_LIFE_KEY = "airflow_eos_life"


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The job that a try submitted and stored.

    :param store: Airflow's store; None before Airflow 3.3, where no try takes up the job of another.
    :param id_key: key under which the provider stores the job's id.
    :param status_key: key under which it stores how a driver on Kubernetes ended.
    :param life: names this run and the task's life: a clear begins another.
    :param driver_of: returns the driver of a job by its id.
    """

    store: Any
    id_key: str
    status_key: str
    life: str
    driver_of: Callable[[str], SparkDriver]

    def is_of_another_life(self) -> bool:
        """Return whether it was submitted by another life of the task, or for another run."""
        return self.store is not None and self.store.get(_LIFE_KEY) != self.life

    def begin_life(self) -> None:
        """End and forget a job of another life: a clear requests new work, and so does an edited Dag."""
        if not self.is_of_another_life():
            return
        try:
            driver = self.running_driver()
            if driver is not None:  # neither a worker nor a triggerer ended it at the clear
                driver.kill()
        except Exception as error:  # noqa: BLE001 - the next attempt fences it
            log.warning("The driver of an earlier life may run until the next attempt fences it: %s", error)
        self.forget()
        self.store.set(_LIFE_KEY, self.life)

    def running_driver(self) -> SparkDriver | None:
        """Return its driver if it still runs; raises if its cluster, or Airflow, is away."""
        job_id = None if self.store is None else self.store.get(self.id_key)
        if job_id is None:
            return None
        driver = self.driver_of(str(job_id))
        status = driver.status()
        log.info("Driver %s: %s", job_id, status)
        return driver if driver.is_running(status) else None

    def forget(self) -> None:
        """Let the next try submit: this job will not commit any more."""
        if self.store is not None:
            for key in (self.id_key, self.status_key):
                if self.store.get(key) is not None:
                    self.store.delete(key)


__all__ = ["StoredJob"]
