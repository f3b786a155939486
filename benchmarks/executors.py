"""The duration of a run by number of executor processes, on a standalone cluster and on YARN.

All share the cores of this machine: the measurement shows that a run is spread over separate executor
processes, and the cost of each additional one. It does not show the speed-up by more machines.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_eos.run.states import State
from airflow_eos_testing import count_records
from airflow_eos_testing.faults import SparkCluster
from airflow_eos_testing.faults.yarn_cluster import YarnCluster
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.records import publish
from benchmarks.rounds import WARM_UPS, run_rounds
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PARTITIONS = 8
LOCAL, STANDALONE, YARN = "local[2]", "standalone", "yarn"
CASES = ((LOCAL, 0), (STANDALONE, 1), (STANDALONE, 2), (STANDALONE, 4), (YARN, 4))


def executors(out: Path, rounds: int, records: int) -> int:
    """Measure, write ``executors.json``, print a line per case; return 1 if an output is incomplete."""
    report: dict[str, Any] = {}
    wrong: dict[str, int] = {}
    with benchmark_broker() as kafka:
        servers = kafka.bootstrap_servers
        kafka.create_topic("src", partitions=PARTITIONS)
        publish(servers, "src", records, PARTITIONS)
        for site, number in CASES:
            sinks = {name: _sink(site, number, name) for name in jobs.PROCESSES}
            for sink in sinks.values():
                kafka.create_topic(sink, partitions=PARTITIONS)
            # Each case needs a new session, and so a new process.
            command = [sys.executable, "-m", "benchmarks.executors", servers, site, str(number), str(rounds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=7200)
            measured = json.loads(done.stdout.splitlines()[-1])
            report[f"{site} {number}"] = measured
            for name, sink in sinks.items():
                case = f"{site}, {number or 'no'} executors, {name}"
                print(f"executors: {case:36} {_line(measured[name])}", flush=True)
                written = count_records(servers, sink)
                if written != (rounds + WARM_UPS) * records:
                    wrong[case] = written
    (out / "executors.json").write_text(json.dumps({"records": records, "cases": report}, indent=2) + "\n")
    for case, written in wrong.items():
        print(f"executors: {case}: {written} records in the output, not {(rounds + WARM_UPS) * records}")
    if not wrong:
        print(f"executors: each output holds its {(rounds + WARM_UPS) * records} records")
    return 1 if wrong else 0


def _sink(site: str, number: int, process: str) -> str:
    return f"{site.partition('[')[0]}-{number}-{process}"


def _line(figures: dict[str, Any]) -> str:
    return (
        f"{figures['seconds']:6.2f} s, {figures['open']:5.2f} s of them open, {figures['cpu']:6.2f} CPU s, "
        f"tasks on {figures['executors']} executors"
    )


def _measure(servers: str, site: str, number: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        settings: dict[str, str] = {}
        if site == STANDALONE:
            cluster = stack.enter_context(SparkCluster(workers=number, cores=1, memory="1g"))
            master = cluster.master
        elif site == YARN:
            yarn = stack.enter_context(YarnCluster(number))
            os.environ["HADOOP_CONF_DIR"] = str(yarn.settings)
            master, settings = "yarn", {**yarn.spark_conf(), "spark.executor.memory": "1g"}
            # The path of a container's folder is too long for a Unix domain socket.
            settings["spark.python.unix.domain.socket.enabled"] = "false"
            # As in all measurements: the compilers and collectors that Java chooses by default.
            del settings["spark.driver.extraJavaOptions"], settings["spark.executor.extraJavaOptions"]
        else:
            master = site
        spark = spark_session(master, peers=False, **settings)
        jobs_of = {
            name: _job(jobs.Cluster(spark, servers, 0), _sink(site, number, name), process)
            for name, process in jobs.PROCESSES.items()
        }
        series = run_rounds(jobs_of, rounds)
        used = _executors(spark)
        spark.stop()
    return {
        name: {
            "seconds": statistics.median(timings.seconds),
            "open": statistics.median(times["END"] - times[State.OPEN.value] for times in timings.stages),
            "cpu": statistics.median(timings.cpu),
            "executors": used,
        }
        for name, timings in series.items()
    }


def _job(cluster: jobs.Cluster, sink: str, process: Any) -> Any:
    def job() -> dict[str, float]:
        jobs.exactly_once(cluster, sink, process)
        return cluster.stages

    return job


def _executors(spark: SparkSession) -> int:
    """Return the number of executors that have run tasks; 0 in a local session, whose driver runs them."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001
    executors = store.executorList(False)  # noqa: FBT003 - the Java API has no names
    return sum(
        executors.apply(at).id() != "driver" and executors.apply(at).completedTasks() > 0
        for at in range(executors.size())
    )


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
