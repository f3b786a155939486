"""Brokers that forget transactional ids within minutes: a run that computes for longer gets a clear error."""

from __future__ import annotations

import pytest

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import RunFenced
from airflow_eos.ledger.keys import cursor_transactional_id
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import LocalDataPlane, Pipeline
from tests.support.patience import wait_until

FORGETFUL = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful():
    with EmbeddedKafka(broker_config=FORGETFUL) as kafka:
        yield kafka


def test_a_run_whose_id_was_forgotten_says_so(forgetful):
    """Its epoch is gone before its transaction opens: the error names the setting, too."""
    pipeline = Pipeline(forgetful)
    pipeline.publish(["v"])
    name = cursor_transactional_id("test", pipeline.spec.group_id)

    class Slow(LocalDataPlane):
        def seal(self, plan):
            sealed = super().seal(plan)
            with ControlPlane(self._spec) as control:
                wait_until(lambda: control.cluster.describe_transaction(name) is None)
            return sealed

    with pytest.raises(RunFenced, match=rf"{name}.*transactional\.id\.expiration\.ms.*doctor"):
        pipeline.run(data=Slow)
    assert pipeline.output() == []
    # A faster run succeeds.
    assert pipeline.run(try_number=2).records_written == 1


def test_doctor_warns_of_brokers_that_forget_ids_too_soon(forgetful):
    """A warning only: short runs work."""
    pipeline = Pipeline(forgetful)
    spec = pipeline.spec
    checks = {check.name: check for check in examine(DoctorOptions(spec.deployment))}
    expiry = checks["expiry of ids"]
    assert (expiry.status, expiry.found) == ("warn", "unused transactional ids are forgotten after 2 seconds")
    assert "raise transactional.id.expiration.ms" in expiry.advice
