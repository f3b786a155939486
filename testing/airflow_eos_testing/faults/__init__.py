"""Faults for tests: a proxy that loses answers, drivers that are killed or frozen at a protocol state.

Brokers are killed and frozen by :class:`airflow_eos_testing.Broker` itself, Airflow's tasks by
:class:`airflow_eos_testing.airflow.AirflowStandalone`. All of them are real processes and real signals.
Runs outside tests cannot reach any of this: a run is held by a subclass, in the test's own driver
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from airflow_eos_testing.faults.attempt import Attempt
    from airflow_eos_testing.faults.driver_process import DriverProcess
    from airflow_eos_testing.faults.points import COMMITTING, HALF_WRITTEN, TABLE_STATES
    from airflow_eos_testing.faults.proxy import KafkaProxy
    from airflow_eos_testing.faults.rules import ProxyFault, Request
    from airflow_eos_testing.faults.run_process import RunProcess
    from airflow_eos_testing.faults.spark_cluster import SparkCluster

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

# As the parent package.
__getattr__ = lazy_exports(
    __name__,
    {
        ".points": ("COMMITTING", "HALF_WRITTEN", "TABLE_STATES"),
        ".attempt": ("Attempt",),
        ".driver_process": ("DriverProcess",),
        ".proxy": ("KafkaProxy",),
        ".rules": ("ProxyFault", "Request"),
        ".run_process": ("RunProcess",),
        ".spark_cluster": ("SparkCluster",),
    },
)
