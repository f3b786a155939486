"""A: availability. Brokers, schedulers and Spark go away; the result is the same, later.

A scheduler's own faults are shown under a real one, in tests/system; executors that die in tests/integration
(``make chaos``), except for what a run makes of it. The tables of docs/guarantees name them.
"""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.exceptions import BrokersUnavailable, DeliveryTimedOut, RunFailed, RunFenced
from airflow_eos.model.ranges import Interval
from airflow_eos.run.states import State
from airflow_eos_testing import read_topic
from airflow_eos_testing.agreement import ledger_records
from tests.guarantees.data_planes import LosesBlocksPlane
from tests.guarantees.experiment import judged, lost_and_duplicated

# -- A1: brokers -----------------------------------------------------------------------------------------


def test_every_broker_is_killed_in_turn_during_one_run(replicated):
    """A1: each of three brokers is killed at a different state and restarted: one attempt, exactly once."""
    kafka = replicated.kafka
    replicated.feed(60)
    turns = dict(zip((State.PLANNED, State.OPEN, State.WRITTEN), kafka.brokers, strict=True))

    def kill(state):
        if state in turns:
            for broker in kafka.brokers:
                if not broker.is_alive:
                    broker.start()
            kafka.wait_in_sync()
            turns.pop(state).kill()

    record = replicated.run(on_state=kill)
    assert not turns
    assert "ABORTED" not in [state for state, _ in record.trace]
    replicated.assert_exact()


def test_without_replicas_one_broker_is_enough_to_stop_a_run(replicated):
    """A1, contrast: with replication factor 1 the broker's death fails the run, which leaves no output."""
    kafka = replicated.kafka
    replicated.feed(20)
    settings = {"min.insync.replicas": "1"}
    single = kafka.create_topic(f"{replicated.sink}-single", replication_factor=1, config=settings)
    leader = kafka.admin().list_topics(single).topics[single].partitions[0].leader
    changes = {"sink_topic": single, "delivery_timeout": dt.timedelta(seconds=4), "max_send_attempts": 1}

    def kill(state):
        if state is State.OPEN:
            kafka.brokers[leader - 1].kill()

    with pytest.raises(RunFailed) as failed:
        replicated.run(on_state=kill, **changes)
    assert isinstance(failed.value.__cause__, (BrokersUnavailable, DeliveryTimedOut))
    kafka.brokers[leader - 1].start()
    kafka.wait_in_sync()
    replicated.run(try_number=2, sink_topic=single)
    output = [r.value.decode() for r in read_topic(kafka.client_config(), single)]
    assert lost_and_duplicated(replicated.sent, output) == ([], [])


# -- A2: schedulers --------------------------------------------------------------------------------------


DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)


def test_one_interval_backfilled_twice_at_once_is_written_once(experiment):
    """A2: two backfills run one interval at once, in two processes: one ledger record, one output."""
    experiment.publish([f"0:{n:06d}" for n in range(20)], timestamp=int(DAY.timestamp() * 1000))
    experiment.sent += [f"0:{n:06d}" for n in range(20)]
    interval = Interval(DAY, DAY + dt.timedelta(days=1))
    both = [experiment.driver(f"backfill__{n}", ranges=interval) for n in (1, 2)]
    ends = [end_of(driver) for driver in both]
    again = experiment.run("backfill__3", ranges=interval)
    assert again.found
    assert experiment.verdict().exact
    config, spec = experiment.kafka.client_config(), experiment.spec
    (recorded,) = ledger_records(config, experiment.ledger, spec.pipeline)
    assert (recorded.run_key, recorded.records_written) == (again.run_key, 20)
    # The loser found the other's commit, or was fenced and finds the commit when it is retried.
    assert {end for end in ends if end is not None} <= {again.run_key}


def end_of(driver):
    """The run key a driver reports, None when it was fenced."""
    try:
        return driver.result().run_key
    except RunFenced:
        return None


def test_two_backfills_that_do_not_share_an_identity_write_twice(experiment):
    """A2, counter-test: with the run id as identity, as in a plain job, both backfills write."""
    experiment.publish([f"0:{n:06d}" for n in range(20)], timestamp=int(DAY.timestamp() * 1000))
    experiment.sent += [f"0:{n:06d}" for n in range(20)]
    interval = Interval(DAY, DAY + dt.timedelta(days=1))
    for n in (1, 2):
        experiment.run(f"backfill__{n}", ranges=interval, pipeline=f"backfill__{n}")
    assert judged(experiment) == ([], sorted(experiment.sent))


# -- A3: Spark -------------------------------------------------------------------------------------------


def test_lost_sealed_batches_cost_one_epoch_and_a_new_seal(experiment):
    """A3: sealed batches are lost halfway through a send: the run aborts and seals the same ranges again."""
    experiment.feed(30)
    record = experiment.run(data=LosesBlocksPlane)
    states = [state for state, _ in record.trace]
    assert [states.count(state) for state in ("FENCED", "PLANNED", "SEALED", "ABORTED")] == [2, 2, 2, 1]
    assert len(experiment.output("read_uncommitted")) > 30  # the lost half stays in the log, aborted
    experiment.assert_exact()
    experiment.assert_log_as_claimed()
