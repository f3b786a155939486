"""The wheel in an environment with only its declared requirements: Airflow finds it, and a run works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_eos_testing import read_topic
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.support.linked_environment import make_linked_environment

ROOT = Path(__file__).resolve().parents[2]
# A task's work without Airflow: a run on a remote Spark.
RUN = """
import json, sys
from pyspark.sql import SparkSession
from airflow_eos import Explicit, LedgerSettings, OffsetRange, RunSpec
from airflow_eos.engine import read_process_write

servers, remote, source, sink, ledger = sys.argv[1:]
spec = RunSpec(
    kafka={"bootstrap.servers": servers}, pipeline="client-only", run_id="r1", source_topics=(source,),
    sink_topic=sink, group_id="client-only", ranges=Explicit((OffsetRange(source, 0, 0, 500),)),
    ledger=LedgerSettings(topic=ledger, replication_factor=1),
)
spark = SparkSession.builder.remote(remote).getOrCreate()
record = read_process_write(spark, spec, lambda df: df.select("value"))
print(json.dumps({"read": record.records_read, "written": record.records_written}))
"""


def run(*command, fails=False, **kwargs):
    """Run a command and return its output; an unexpected exit code shows the output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **kwargs)
    assert (done.returncode != 0) is fails, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def client_only(tmp_path_factory):
    """Install the production wheel and its declared requirements only; return folder and environment.

    ``make dist`` installs the wheels as users do, by pip from an index.
    """
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    make_linked_environment(folder / "venv", wheel, "airflow-eos")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON", "PYSPARK"))}
    return folder, {**inherited, "AIRFLOW_HOME": str(folder / "airflow")}


@pytest.mark.timeout(900)
def test_the_wheel_alone_makes_an_airflow_that_lists_the_provider(client_only):
    """The declared requirements suffice: nothing of the checkout or its environment is used."""
    folder, env = client_only
    here = {"cwd": folder, "env": env}
    python = str(folder / "venv" / "bin" / "python")
    airflow = (python, "-m", "airflow")
    listed = json.loads(run(*airflow, "providers", "list", "--output", "json", **here))
    assert "airflow-eos" in [provider["package_name"] for provider in listed]
    assert "reset-offsets" in run(*airflow, "eos", "--help", **here)
    code = "from airflow.sdk import task; print(task.kafka_eos.__name__)"
    assert run(python, "-c", code, **here).split()[-1] == "kafka_eos_task"
    code = "import airflow_eos; print(airflow_eos.ReadProcessWriteOperator.__name__)"
    assert run(python, "-c", code, **here).split()[-1] == "ReadProcessWriteOperator"


@pytest.mark.timeout(900)
def test_production_alone_has_no_test_equipment_and_no_jars(client_only):
    """Neither installed nor registered, and no 485 MB of jars; a local master names what is missing."""
    folder, env = client_only
    here = {"cwd": folder, "env": env}
    python = str(folder / "venv" / "bin" / "python")
    code = "import importlib.util as u; print(u.find_spec('airflow_eos_testing'), u.find_spec('pytest'))"
    assert run(python, "-c", code, **here).split()[-2:] == ["None", "None"]
    code = "from importlib.metadata import entry_points; print(entry_points(group='pytest11').names)"
    assert "eos" not in run(python, "-c", code, **here)
    assert list((folder / "venv").rglob("pyspark/jars")) == []
    code = "from airflow_eos.operators.spark_session import TaskSession; TaskSession({}).start(1000)"
    assert "pip install 'airflow-eos[pyspark42]'" in run(python, "-c", code, fails=True, **here)


@pytest.mark.timeout(900)
def test_sparks_client_is_enough_for_a_run_on_spark_connect(client_only, embedded_kafka, kafka_topic):
    """The client process needs no JVM and no jars: a run is committed, and its output is there once."""
    folder, env = client_only
    source, sink = kafka_topic(), kafka_topic()
    producer = Producer(embedded_kafka.client_config())
    for number in range(500):
        producer.produce(source, str(number), partition=0)
    assert producer.flush(30) == 0
    with SparkConnectServer() as spark:
        names = (embedded_kafka.bootstrap_servers, spark.url, source, sink, f"ledger-{sink}")
        (folder / "task.py").write_text(RUN)  # Spark takes code without a file for its own doctests
        done = run(str(folder / "venv" / "bin" / "python"), "task.py", *names, cwd=folder, env=env)
    assert json.loads(done.splitlines()[-1]) == {"read": 500, "written": 500}
    values = [int(record.value) for record in read_topic(embedded_kafka.client_config(), sink)]
    assert sorted(values) == list(range(500))
