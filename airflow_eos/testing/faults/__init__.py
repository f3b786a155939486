"""Faults for tests: a proxy that loses answers, drivers that are killed or frozen at a protocol state.

Brokers are killed and frozen by :class:`airflow_eos.testing.Broker` itself, Airflow's tasks by
:class:`airflow_eos.testing.airflow.AirflowStandalone`. All of them are real processes and real signals.
Nothing in here can be reached from a run outside of tests: a run is held by a subclass, in the test's own
driver process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.testing.faults.attempt import Attempt
    from airflow_eos.testing.faults.driver_process import DriverProcess
    from airflow_eos.testing.faults.points import COMMITTING, HALF_WRITTEN, TABLE_STATES
    from airflow_eos.testing.faults.proxy import KafkaProxy
    from airflow_eos.testing.faults.rules import ProxyFault, Request
    from airflow_eos.testing.faults.run_process import RunProcess
    from airflow_eos.testing.faults.spark_cluster import SparkCluster

__all__ = [
    "COMMITTING",
    "HALF_WRITTEN",
    "TABLE_STATES",
    "Attempt",
    "DriverProcess",
    "KafkaProxy",
    "ProxyFault",
    "Request",
    "RunProcess",
    "SparkCluster",
]

_HOMES = {
    "COMMITTING": "points",
    "HALF_WRITTEN": "points",
    "TABLE_STATES": "points",
    "Attempt": "attempt",
    "DriverProcess": "driver_process",
    "KafkaProxy": "proxy",
    "ProxyFault": "rules",
    "Request": "rules",
    "RunProcess": "run_process",
    "SparkCluster": "spark_cluster",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
