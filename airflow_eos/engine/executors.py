"""Whether the executors of a Spark can do the work."""

from __future__ import annotations

from airflow_eos.engine.doctor import Check
from airflow_eos.exceptions import EosError


def check_executors(address: str) -> Check:
    """Start a session on a master or a Spark Connect server and compare versions.

    :param address: ``local[2]``, ``spark://host:7077``, ``sc://host:15002``, ...
    """
    from pyspark.sql import SparkSession

    from airflow_eos.spark.preflight import check_environment

    name = f"executors of {address.partition(';')[0]}"
    found_session = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName("airflow-eos-doctor")
    builder = builder.remote(address) if address.startswith("sc://") else builder.master(address)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - Spark raises anything
        return Check(name, "fail", f"no session: {error}", "check the address, and that Spark runs there")
    try:
        found = check_environment(session)
    except EosError as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}")
    finally:
        if found_session is None:
            session.stop()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
    return Check(name, "ok", f"Spark {found.spark}, {len(found.executors)} executors, {versions}")
