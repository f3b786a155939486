"""Spark runs in a process with all loggers at DEBUG, on the driver and in the Python workers.

Reads a JSON object from standard input: ``kafka`` (client settings), ``names`` (source, sink, ledger,
pipeline and group) and ``catalog``: properties of an Iceberg catalog with a table ``db.t``, or null.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from dataclasses import replace

from airflow_eos import IcebergTable
from airflow_eos.engine.run import Run
from airflow_eos.model.spec import LedgerSettings, RunSpec
from tests.support.spark_sessions import new_session

SITE_CUSTOMIZE = """
import logging, sys
logging.basicConfig(stream=sys.stderr, format="pid=%(process)d %(name)s: %(message)s")
for name in ("", "kafka", "airflow_eos", "py4j", "pyspark"):
    logging.getLogger(name).setLevel(logging.DEBUG)
"""
"""Code of a ``sitecustomize`` on the path of driver and workers: they log at DEBUG from the start."""
TOKEN_MARKER = "token-marker-41c9"


def unsecured_token(_argument):
    """An ``oauth_cb``: returns an unsigned token (RFC 7515, appendix A.5), as brokers accept it."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "loud", "iat": now, "exp": now + 3600, "secret": TOKEN_MARKER})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""]), now + 3600


def copy(frame):
    """Copy key and value."""
    return frame.select("key", "value")


def as_columns(frame):
    """Return the columns of the table."""
    return frame.selectExpr("cast(value AS string) value")


def main():
    """Run to a topic and, if a catalog is given, to its table."""
    given = json.load(sys.stdin)
    spark = new_session("classic", "local[1]")
    names = given["names"]
    spec = RunSpec(
        kafka=given["kafka"],
        pipeline=names["pipeline"],
        run_id="r1",
        source_topics=(names["source"],),
        sink_topic=names["sink"],
        group_id=names["group"],
        prefix="test",
        ledger=LedgerSettings(topic=names["ledger"], partitions=2),
    )
    record = Run(spark, spec, copy).execute()
    print(record.run_id, record.state, record.records_written)
    if given["catalog"] is not None:
        table = IcebergTable("db.t", catalog="c", properties=given["catalog"])
        of_table = {"sink_topic": None, "sink": table, "group_id": f"{names['group']}-table"}
        pipeline = f"{names['pipeline']}-table"
        record = Run(spark, replace(spec, run_id="r2", pipeline=pipeline, **of_table), as_columns).execute()
        print(record.run_id, record.state, record.records_written, record.to_json())
    spark.stop()


if __name__ == "__main__":
    main()
