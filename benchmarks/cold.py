"""One job in a fresh process, as a scheduled task pays for it.

``python -m benchmarks.cold JOB SERVERS RECORDS SINK``

Started and timed from outside: interpreter, imports, JVM, session and job, to the end of the process.
"""

from __future__ import annotations

import subprocess
import sys
import time

JOBS = ("tuned", "dataframe", "arrow")


def measure(job: str, servers: str, records: int, sink: str) -> float:
    """Return the seconds of one fresh process."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.cold", job, servers, str(records), sink]
    subprocess.run(command, check=True, timeout=1800, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main(job: str, servers: str, records: str, sink: str) -> None:
    """Run one job and stop the session."""
    from benchmarks import jobs
    from benchmarks.session import spark_session

    spark = spark_session(connector=job == "tuned")
    cluster = jobs.Cluster(spark, servers, int(records))
    if job == "tuned":
        jobs.at_least_once(cluster, sink, jobs.TUNED)
    else:
        jobs.exactly_once(cluster, sink, jobs.transform if job == "dataframe" else jobs.transform_arrow)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
