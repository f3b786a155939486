"""A ledger whose topic or key is misconfigured: the error names the setting; runs work once it is fixed."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from airflow_eos.exceptions import ConfigurationError, LedgerMissing, NotYetVisible, RecordTooLarge
from airflow_eos.model.ranges import Interval
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.queries import create_ledger
from airflow_eos.run.states import State
from tests.support.local_runs import Pipeline
from tests.support.missing_topics import missing_at_once
from tests.support.topic_settings import change_topic_and_wait

SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka, partitions=1)
    filled.publish(["a"], timestamp=int(NOON.timestamp() * 1000))
    filled.publish(["b"], timestamp=int((NOON + 4 * HOUR).timestamp() * 1000))
    return filled


def checks(pipeline):
    return {check.name: check for check in examine(DoctorOptions(pipeline.spec.deployment))}


@pytest.mark.parametrize("pinned", ["identity", "boundary"])
def test_a_value_that_the_topic_refuses_is_not_pinned_again_and_again(pipeline, pinned):
    """It once cost half a minute of attempts, and the error blamed other runs."""
    limit = {"max.message.bytes": "150"}
    if pinned == "boundary":
        create_ledger(pipeline.spec.deployment)
        change_topic_and_wait(pipeline.kafka.admin(), pipeline.ledger, limit)
    else:
        pipeline.kafka.create_topic(pipeline.ledger, 2, config={"cleanup.policy": "compact", **limit})
    hour = Interval(NOON, NOON + HOUR)
    with pytest.raises(RecordTooLarge, match=rf"record '.*{pinned if pinned == 'identity' else 'boundary:'}"):
        pipeline.run(ranges=hour)
    settings = checks(pipeline)["ledger settings"]
    assert (settings.status, "max.message.bytes=150 (not 1048588 or more)" in settings.found) == (
        "warn",
        True,
    )
    change_topic_and_wait(pipeline.kafka.admin(), pipeline.ledger, {"max.message.bytes": "1048588"})
    assert pipeline.run(ranges=hour).records_read == 1
    assert "max.message.bytes" not in checks(pipeline)["ledger settings"].found


def test_a_run_makes_no_ledger_of_a_topic_that_deletes(pipeline):
    """It is another application's, or would delete runs after a week; once compacted, it is accepted."""
    pipeline.kafka.create_topic(pipeline.ledger, 2)
    with pytest.raises(ConfigurationError, match=r"has cleanup\.policy=delete: .* forgets runs; set compact"):
        pipeline.run()
    change_topic_and_wait(pipeline.kafka.admin(), pipeline.ledger, {"cleanup.policy": "compact"})
    assert pipeline.run().records_read == 2


def test_doctor_warns_of_a_ledger_that_may_lose_its_end(pipeline):
    """After an unclean election committed runs would be written again."""
    create_ledger(pipeline.spec.deployment)
    assert checks(pipeline)["ledger settings"].status == "ok"
    unclean = {"unclean.leader.election.enable": "true"}
    change_topic_and_wait(pipeline.kafka.admin(), pipeline.ledger, unclean)
    settings = checks(pipeline)["ledger settings"]
    assert (settings.status, settings.found) == ("warn", "unclean.leader.election.enable=true (not false)")
    assert "forgets runs" in settings.advice


def test_doctor_says_that_runs_without_the_key_are_refused(pipeline):
    """All of them are refused; the records themselves are valid."""
    signed = replace(pipeline.spec.ledger, key="a-ledgers-secret-of-some-length")
    pipeline.run(ledger=signed)
    with pytest.raises(ConfigurationError, match="ledger_key"):
        pipeline.run("r2")
    ledger = checks(pipeline)["ledger"]
    assert ledger.status == "fail"
    assert "no [eos] ledger_key" in ledger.found
    pipeline.spec = replace(pipeline.spec, ledger=signed)
    assert checks(pipeline)["ledger"].status == "ok"


def test_a_ledger_that_is_deleted_under_a_run_is_named_as_one(pipeline):
    """Otherwise the advice would be to create it as a missing topic, or to name another ledger."""
    pipeline.run("r1")
    pipeline.publish(["c"])

    def delete(state):
        if state is State.SEALED:
            pipeline.kafka.delete_topic(pipeline.ledger)

    with missing_at_once():
        with pytest.raises(LedgerMissing, match=r"it was deleted since .* Restore it"):
            pipeline.run("r2", on_state=delete, delivery_timeout=2 * SECOND)
        with pytest.raises(LedgerMissing, match="it was deleted"):
            pipeline.run("r2")
    assert pipeline.output() == ["a", "b"]


def test_a_ledger_that_is_deleted_before_the_commit_is_not_to_be_created(pipeline):
    """After the proof: the run is committed, and readers see its output; the retry names the lost ledger."""

    def delete(state):
        if state is State.PROVEN:
            pipeline.kafka.delete_topic(pipeline.ledger)

    with missing_at_once():
        with pytest.raises(NotYetVisible, match=rf"topic '{pipeline.ledger}' does not exist") as hidden:
            pipeline.run("r1", on_state=delete)
        assert "create" not in str(hidden.value)
        with pytest.raises(LedgerMissing, match="it was deleted"):
            pipeline.run("r1", try_number=2)
    assert pipeline.output() == ["a", "b"]
