"""Several jobs in one process: ``python -m benchmarks.fresh_job JOB WORKLOAD SERVERS ...``.

The further arguments are those of ``java/Copy.java``; a line is printed as each job ends.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.spark_host.local_session import LocalSession


def main(job: str, workload: str, servers: str, source: str, sink: str, records: str, number: str) -> None:
    """Run a job ``number`` times, each time over the whole topic."""
    from pyspark.sql import SparkSession

    from benchmarks import jobs
    from benchmarks.session import connector, spark_session, task_session

    if job == "tuned":
        started: SparkSession | LocalSession = spark_session()
    else:
        added = connector() if job == "tuned-jvm" else {}
        started = task_session(int(records), rows=job != "arrow", **added)
    spark = started if isinstance(started, SparkSession) else started.session
    cluster = jobs.Cluster(spark, servers, int(records), source)
    for count in range(1, int(number) + 1):
        if job in ("tuned", "tuned-jvm"):
            jobs.at_least_once(cluster, sink, jobs.TUNED, workload)
        else:
            work = jobs.WORKLOADS[workload]
            jobs.exactly_once(cluster, sink, work.frame if job == "dataframe" else work.arrow)
        print(json.dumps({"job": count}), flush=True)
    started.stop()


if __name__ == "__main__":
    main(*sys.argv[1:8])
