"""Several jobs in one process, one after the other: ``python -m benchmarks.fresh_job JOB SERVERS ...``.

Arguments as those of ``java/Copy.java``; a line is printed as each job ends.
"""

from __future__ import annotations

import json
import sys


def main(job: str, servers: str, source: str, sink: str, records: str, number: str) -> None:
    """Run a job so many times, each over the whole topic."""
    from benchmarks import jobs
    from benchmarks.session import spark_session, task_session

    spark = spark_session() if job == "tuned" else task_session(int(records), rows=job != "arrow")
    cluster = jobs.Cluster(spark, servers, int(records), source)
    for count in range(1, int(number) + 1):
        if job == "tuned":
            jobs.at_least_once(cluster, sink, jobs.TUNED)
        else:
            jobs.exactly_once(cluster, sink, jobs.transform if job == "dataframe" else jobs.transform_arrow)
        print(json.dumps({"job": count}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:7])
