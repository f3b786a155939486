"""Exactly-once read-process-write batches between Apache Airflow, PySpark and Apache Kafka.

::

    from airflow_eos import Cursor, ReadProcessWriteOperator       # in a Dag file
    from airflow_eos import RunSpec, read_process_write            # without Airflow

Names are imported on first use: a Dag file loads no Spark, Arrow or Kafka client, and an executor no Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from airflow_eos.engine import Run, RunAttempt, find_committed, read_process_write
    from airflow_eos.exceptions import (
        ConfigurationError,
        EosError,
        NotYetVisible,
        PlanError,
        RunAlreadyCommitted,
        RunError,
        RunFenced,
    )
    from airflow_eos.hooks.kafka_eos import KafkaEosHook
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.delta_table import DeltaTable
    from airflow_eos.model.iceberg_table import IcebergTable
    from airflow_eos.model.postgres_table import PostgresTable
    from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
    from airflow_eos.model.spec import LedgerSettings, RunSpec
    from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
    from airflow_eos.operators.replay import ReplayOffsetRangesOperator
    from airflow_eos.operators.retry import TransactionRetryPolicy
    from airflow_eos.operators.submit import ReadProcessWriteSubmitOperator
    from airflow_eos.sensors.kafka_data_interval import KafkaDataIntervalSensor
    from airflow_eos.sensors.kafka_lag import KafkaLagSensor
    from airflow_eos.sensors.run_committed import RunCommittedSensor
    from airflow_eos.spark.process import arrow_process
    from airflow_eos.triggers.offset_range import OffsetRangeTrigger

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Cursor",
    "DeltaTable",
    "EosError",
    "Explicit",
    "IcebergTable",
    "Interval",
    "KafkaDataIntervalSensor",
    "KafkaEosHook",
    "KafkaLagSensor",
    "LedgerSettings",
    "NotYetVisible",
    "OffsetRange",
    "OffsetRangeTrigger",
    "PartitionInterval",
    "PlanError",
    "PostgresTable",
    "ReadProcessWriteOperator",
    "ReadProcessWriteSubmitOperator",
    "ReplayOffsetRangesOperator",
    "Run",
    "RunAlreadyCommitted",
    "RunAttempt",
    "RunCommittedSensor",
    "RunError",
    "RunFenced",
    "RunRecord",
    "RunSpec",
    "TransactionRetryPolicy",
    "__version__",
    "arrow_process",
    "find_committed",
    "read_process_write",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "airflow_eos.engine": ("Run", "RunAttempt", "find_committed", "read_process_write"),
        "airflow_eos.exceptions": (
            "ConfigurationError",
            "EosError",
            "PlanError",
            "RunAlreadyCommitted",
            "RunError",
            "NotYetVisible",
            "RunFenced",
        ),
        "airflow_eos.hooks.kafka_eos": ("KafkaEosHook",),
        "airflow_eos.model.ranges": ("Cursor", "Explicit", "Interval", "OffsetRange", "PartitionInterval"),
        "airflow_eos.ledger.records.run_record": ("RunRecord",),
        "airflow_eos.model.spec": ("LedgerSettings", "RunSpec"),
        "airflow_eos.model.delta_table": ("DeltaTable",),
        "airflow_eos.model.iceberg_table": ("IcebergTable",),
        "airflow_eos.model.postgres_table": ("PostgresTable",),
        "airflow_eos.operators.read_process_write": ("ReadProcessWriteOperator",),
        "airflow_eos.sensors.run_committed": ("RunCommittedSensor",),
        "airflow_eos.triggers.offset_range": ("OffsetRangeTrigger",),
        "airflow_eos.sensors.kafka_lag": ("KafkaLagSensor",),
        "airflow_eos.sensors.kafka_data_interval": ("KafkaDataIntervalSensor",),
        "airflow_eos.operators.replay": ("ReplayOffsetRangesOperator",),
        "airflow_eos.operators.retry": ("TransactionRetryPolicy",),
        "airflow_eos.spark.process": ("arrow_process",),
        "airflow_eos.operators.submit": ("ReadProcessWriteSubmitOperator",),
    },
)


def __dir__() -> list[str]:
    return __all__
