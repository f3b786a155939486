"""A submitted run that waits in a real triggerer: the ledger decides; marking the task kills the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.model.spec import RunSpec
from airflow_eos.run.protocol import RunProtocol
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone
from tests.support.local_runs import LocalDataPlane
from tests.support.patience import eventually
from tests.system.airflow_waits import another_triggerer, deferred
from tests.system.gate import Gate
from tests.system.retries_table import Pipeline, added, grown
from tests.system.spark_master import SparkMaster

pytestmark = pytest.mark.timeout(600)  # processes start cold, on whatever machine


def test_driver_that_fails_after_its_commit_is_a_success(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, spark_master: SparkMaster
) -> None:
    """No worker is occupied. One driver dies early and another is submitted, which dies after its commit."""
    pipeline = Pipeline(kafka, "driver", "driver.copy")
    before = pipeline.look()
    sent = pipeline.publish("driver")
    run_id = "submitted"
    first, second = (f"driver-{run_id}-{number}" for number in (1, 2))
    spark_master.states.update({first: "RUNNING", second: "RUNNING"})
    airflow.trigger("driver", run_id)
    deferred(airflow, "driver", run_id, "copy")
    eventually(lambda: airflow.task_processes("driver", run_id, "copy"), lambda seen: seen == [])
    spark_master.states[first] = "FAILED"
    deferred(airflow, "driver", run_id, "copy", try_number=2)
    assert pipeline.look() == before

    spec = RunSpec(
        kafka=kafka.client_config(),
        pipeline="driver.copy",
        run_id=run_id,
        try_number=2,
        source_topics=("driver-in",),
        sink_topic="driver-out",
        group_id="driver",
    )
    with ControlPlane(spec) as control:
        committed = RunProtocol(spec, control.collaborators(LocalDataPlane(spec)), None).execute()
    spark_master.states[second] = "FAILED"
    ended = airflow.wait_for_run("driver", run_id)
    assert ended == "success", airflow.task_log("driver", run_id, "copy", 2)
    assert airflow.xcom("driver", run_id, "copy") == {**committed.summary(), "found": True}
    after = pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]

    airflow.clear("driver", run_id, ["copy"])  # the ledger answers: nothing is submitted
    airflow.wait_for_task("driver", run_id, "copy", ["success"], try_number=3)
    assert pipeline.look() == after
    assert spark_master.killed == []


def test_marked_while_deferred_the_driver_is_killed(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, spark_master: SparkMaster
) -> None:
    """The trigger's on_kill kills it, in the triggerer: no other process could."""
    pipeline = Pipeline(kafka, "driver", "driver.copy")
    before = pipeline.look()
    run_id = "marked"
    spark_master.states[f"driver-{run_id}-1"] = "RUNNING"
    airflow.trigger("driver", run_id)
    airflow.wait_for_task("driver", run_id, "copy", ["deferred"])
    # A trigger that the triggerer has not started yet has no on_kill.
    eventually(lambda: set(spark_master.polled), lambda seen: f"driver-{run_id}-1" in seen)
    airflow.set_task_state("driver", run_id, "copy", "failed")
    eventually(lambda: spark_master.killed, lambda seen: seen == [f"driver-{run_id}-1"])
    assert airflow.task("driver", run_id, "copy")["state"] == "failed"
    assert pipeline.look() == before


def test_driver_outlives_a_triggerer_that_lost_it_to_another(
    airflow: AirflowStandalone, spark_master: SparkMaster
) -> None:
    """Airflow sends a triggerer that was unresponsive for too long the same signal as for a killed task."""
    run_id = "taken"
    driver = f"driver-{run_id}-1"
    spark_master.states[driver] = "RUNNING"
    airflow.trigger("driver", run_id)
    airflow.wait_for_task("driver", run_id, "copy", ["deferred"])
    eventually(lambda: set(spark_master.polled), lambda seen: driver in seen)
    with another_triggerer(airflow, "driver", run_id):
        eventually(
            lambda: (airflow.trigger_log("driver", run_id, "copy"), spark_master.killed),
            lambda seen: "another triggerer waits" in seen[0] or driver in seen[1],
        )
        assert driver not in spark_master.killed
    spark_master.polled.clear()
    eventually(lambda: set(spark_master.polled), lambda seen: driver in seen)
    airflow.set_task_state("driver", run_id, "copy", "failed")
    eventually(lambda: spark_master.killed, lambda seen: driver in seen)


def test_time_out_while_deferred_ends_the_driver(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, spark_master: SparkMaster
) -> None:
    """The trigger enforces it: Airflow itself does not count the task's time while it is deferred."""
    before = Pipeline(kafka, "driver", "driver.copy").look()
    run_id = "late"
    spark_master.states[f"driver-{run_id}-1"] = "RUNNING"
    airflow.trigger("driver_limited", run_id)
    eventually(lambda: spark_master.killed, lambda seen: f"driver-{run_id}-1" in seen)
    airflow.wait_for_task("driver_limited", run_id, "copy", ["failed"])
    assert Pipeline(kafka, "driver", "driver.copy").look() == before


@pytest.mark.chaos
def test_driver_of_a_killed_task_ends_with_it(
    airflow: AirflowStandalone, kafka: EmbeddedKafka, folder: Path
) -> None:
    """In client mode, marking the task failed ends driver, JVM and spark-submit; a clear does the work."""
    pipeline = Pipeline(kafka, "submitted", "submitted_held.copy")
    before = pipeline.look()
    sent = pipeline.publish("submitted")
    gate = Gate(folder, "submitted")
    gate.shut()
    try:
        run_id = airflow.trigger("submitted_held")
        (driver,) = gate.wait()
        started = set(airflow.task_processes("submitted_held", run_id, "copy", tree=True))
        assert driver in started
        airflow.set_task_state("submitted_held", run_id, "copy", "failed")
        eventually(airflow.processes, lambda seen: not started & set(seen), seconds=90)
    finally:
        gate.open()
    assert airflow.task("submitted_held", run_id, "copy")["state"] == "failed"
    assert pipeline.look() == before
    # A task cleared while the scheduler ends the run would never run.
    assert airflow.wait_for_run("submitted_held", run_id) == "failed"
    airflow.clear("submitted_held", run_id, ["copy"])
    assert airflow.wait_for_run("submitted_held", run_id) == "success"
    after = pipeline.look()
    assert after == grown(before, sent, runs=after.runs)
    assert added(before, after) == [(run_id, 2)]
