"""A run that waits in a real triggerer for its driver on a real YARN, while either of them fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import kafka_connection
from airflow_eos_testing.airflow_platform import AirflowPlatform
from airflow_eos_testing.faults.half_send import is_half_written, let_go
from airflow_eos_testing.faults.yarn_cluster import YarnCluster
from tests.support.patience import eventually, wait_until
from tests.system.airflow_env import ROOT
from tests.system.airflow_waits import deferred
from tests.system.retries_table import Pipeline, added, grown

from flights_input import TOPIC_CONFIG  # isort: skip

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]  # processes start cold, on whatever machine

DAG, TASK = "on_yarn", "copy"
FILES = ("on_yarn.py", "on_yarn_app.py")


@dataclass
class Place:
    """An Airflow, a YARN and a broker, and the folder in which the drivers of one test synchronise."""

    airflow: AirflowPlatform
    yarn: YarnCluster
    pipeline: Pipeline
    meeting: Path

    def half_way(self) -> tuple[str, str]:
        """Trigger a run; return run and application once half is written and the task deferred."""
        before = set(self.yarn.applications())
        run_id = self.airflow.trigger(DAG, timeout=120)
        wait_until(lambda: is_half_written(self.meeting), 240)
        deferred(self.airflow, DAG, run_id, TASK)
        self.triggerer_looks(run_id)
        (application,) = set(self.yarn.applications()) - before
        return run_id, application

    def triggerer_looks(self, run_id: str, triggerers: int = 1) -> None:
        """Wait until the trigger runs: before that, it has no on_kill.

        :param triggerers: number of triggerers that have followed this run so far.
        """
        log = self.airflow.home / "logs" / f"dag_id={DAG}" / f"run_id={run_id}" / f"task_id={TASK}"

        def seen() -> int:
            return sum("RUNNING" in path.read_text() for path in log.glob("attempt=*.log.trigger.*"))

        wait_until(lambda: seen() >= triggerers, 120)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start all three, with a Dag that no other Airflow has."""
    folder = tmp_path_factory.mktemp("on-yarn")
    (folder / "dags").mkdir()
    (folder / "meeting").mkdir()
    for name in FILES:
        shutil.copy(ROOT / "tests" / "system" / "dags" / name, folder / "dags")
    with YarnCluster(1) as yarn, EmbeddedKafka() as kafka:
        for topic in ("on-yarn-in", "on-yarn-out"):
            # The records' timestamps are years old: time-based retention would delete them within minutes.
            kafka.create_topic(topic, partitions=4, config=TOPIC_CONFIG)
        meeting = {"spark.yarn.appMasterEnv.EOS_TEST_MEETING": str(folder / "meeting")}
        env = {
            "HADOOP_CONF_DIR": str(yarn.settings),
            "EOS_TEST_YARN_CONF": json.dumps({**yarn.spark_conf(), **meeting}),
        }
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.webapp}
        connections = {
            "kafka_default": kafka_connection(kafka.bootstrap_servers),
            "spark_yarn": {"conn_type": "spark", "host": "yarn", "extra": extra},
        }
        kind = {"executor": "LocalExecutor", "schedulers": 1}
        with AirflowPlatform(folder / "dags", connections=connections, env=env, **kind) as airflow:
            pipeline = Pipeline(kafka, "on-yarn", f"{DAG}.{TASK}")
            yield Place(airflow, yarn, pipeline, folder / "meeting")


@pytest.fixture
def place(running: Place) -> Place:
    """Return the running place, with an empty meeting folder."""
    for path in running.meeting.iterdir():
        path.unlink()
    return running


def test_a_deferred_task_commits_and_holds_no_worker(place: Place) -> None:
    """The driver is released: the triggerer sees its end, and the ledger has the run."""
    before, sent = place.pipeline.look(), place.pipeline.publish("plain")
    run_id, application = place.half_way()
    eventually(lambda: place.airflow.task_processes(DAG, run_id, TASK), lambda seen: seen == [])
    let_go(place.meeting)
    assert place.airflow.wait_for_run(DAG, run_id) == "success"
    after = place.pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 1)]
    assert place.yarn.wait_until_ended(application) == "SUCCEEDED"


def test_a_deferred_task_that_is_marked_failed_ends_its_application(place: Place) -> None:
    """The triggerer ends it; nothing is committed until the task is cleared, then everything is, once."""
    before, sent = place.pipeline.look(), place.pipeline.publish("marked")
    run_id, application = place.half_way()
    place.airflow.set_task_state(DAG, run_id, TASK, "failed")
    assert place.yarn.wait_until_ended(application) == "KILLED"
    assert place.airflow.wait_for_run(DAG, run_id) == "failed"
    let_go(place.meeting)
    wait_until(lambda: not place.yarn.processes(application))
    assert place.pipeline.look() == before
    place.airflow.clear(DAG, run_id, [TASK])
    assert place.airflow.wait_for_run(DAG, run_id) == "success"
    after = place.pipeline.look()
    assert after == grown(before, sent, runs=after.runs)


def test_a_deferred_task_that_is_cleared_is_done_by_another_application(place: Place) -> None:
    """The triggerer ends the first one half way; the next try submits another, which writes everything."""
    before, sent = place.pipeline.look(), place.pipeline.publish("cleared")
    run_id, application = place.half_way()
    place.airflow.clear(DAG, run_id, [TASK])
    assert place.yarn.wait_until_ended(application) == "KILLED"
    let_go(place.meeting)
    wait_until(lambda: not place.yarn.processes(application))
    assert place.pipeline.look() == before
    assert place.airflow.wait_for_run(DAG, run_id) == "success"
    after = place.pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]
    assert [ti["state"] for ti in place.airflow.api.tries(DAG, run_id, TASK)][-1] == "success"


def test_a_task_that_is_cleared_without_a_triggerer_ends_its_application(place: Place) -> None:
    """The next try does: nobody else could, and the driver would work beside its own until it is fenced."""
    before, sent = place.pipeline.look(), place.pipeline.publish("alone")
    run_id, application = place.half_way()
    place.airflow.kill_component("triggerer", tree=True)
    place.airflow.clear(DAG, run_id, [TASK])
    assert place.yarn.wait_until_ended(application) == "KILLED"
    let_go(place.meeting)
    place.airflow.start_components("triggerer")
    assert place.airflow.wait_for_run(DAG, run_id) == "success"
    after = place.pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]


def test_a_triggerer_that_is_killed_leaves_the_application_alone(place: Place) -> None:
    """The next triggerer follows the same driver; if none sees its end, a later triggerer finds it."""
    before, sent = place.pipeline.look(), place.pipeline.publish("orphaned")
    run_id, application = place.half_way()
    applications = set(place.yarn.applications())
    place.airflow.kill_component("triggerer", tree=True)
    place.airflow.start_components("triggerer")
    place.triggerer_looks(run_id, 2)
    assert place.yarn.application(application)["state"] == "RUNNING"

    place.airflow.kill_component("triggerer", tree=True)
    let_go(place.meeting)
    assert place.yarn.wait_until_ended(application) == "SUCCEEDED"
    after = place.pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert place.airflow.task(DAG, run_id, TASK)["state"] == "deferred"
    place.airflow.start_components("triggerer")
    assert place.airflow.wait_for_run(DAG, run_id) == "success"
    assert place.pipeline.look() == after
    assert added(before, after) == [(run_id, 1)]
    assert set(place.yarn.applications()) == applications
