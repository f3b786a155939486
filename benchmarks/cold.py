"""One run with a DataFrame process function in a fresh process, the cost of a scheduled task.

``python -m benchmarks.cold SERVERS RECORDS SOURCE SINK``

Started and timed from outside: interpreter, imports, JVM, session and job, to the end of the process. The
session is started as by an operator. With ``SPARK_REMOTE`` in the environment it is a session of that Spark
Connect server, with ``SPARK_SUBMIT_OPTS`` one that Spark itself starts, with these JVM options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from airflow_eos.spark_host import jvm


def measure(
    servers: str, records: int, source: str, sink: str, environment: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Return the seconds of one fresh process: ``whole``, and the parts ``session`` and ``job``.

    :param environment: variables to set for it.
    """
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.cold", servers, str(records), source, sink]
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        check=True,
        timeout=1800,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    whole = time.perf_counter() - begun
    return {"whole": whole, **json.loads(done.stdout.splitlines()[-1])}


def main(servers: str, records: str, source: str, sink: str) -> None:
    """Run one job, stop the session, print the durations."""
    begun = time.perf_counter()
    from benchmarks import jobs
    from benchmarks.session import connect_session, spark_session, task_session

    remote = os.environ.get("SPARK_REMOTE")
    started: Any
    if remote:
        started = spark = connect_session(remote)
    elif jvm.OPTIONS_VARIABLE in os.environ:
        started = spark = spark_session(peers=False)
    else:
        started = task_session(int(records))
        spark = started.session
    session = time.perf_counter()
    cluster = jobs.Cluster(spark, servers, int(records), source)
    jobs.exactly_once(cluster, sink, jobs.transform)
    ended = time.perf_counter()
    started.stop()
    print(json.dumps({"session": session - begun, "job": ended - session}))


if __name__ == "__main__":
    main(*sys.argv[1:5])
