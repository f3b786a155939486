"""A Dag as the database holds it, and back."""

from __future__ import annotations

try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # Airflow 3.1
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = ["DagSerialization"]
