"""T5: zombies. A stopped and replaced attempt wakes up: whatever it tries, nothing changes."""

from __future__ import annotations

import threading
from itertools import product

import pytest

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ProducerFenced, RunFenced
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run import laws
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn
from tests.guarantees.data_planes import ExecutorPlane
from tests.guarantees.experiment import Experiment, described, given, judged
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import LocalDataPlane, Paused


def state_or_text(value):
    return value.value if isinstance(value, State) else value


ZOMBIE_STATES = (State.OPEN, State.WRITTEN, State.PROVEN)
on_brokers_at_states = pytest.mark.parametrize(
    ("any_kafka", "state"),
    # Older brokers in one state only: their epochs fence in each of them.
    rest_in_chaos(
        4,
        [
            *(("4.3", state) for state in ZOMBIE_STATES),
            *(("3.9", state) for state in (State.WRITTEN, State.OPEN, State.PROVEN)),
        ],
    ),
    indirect=["any_kafka"],
    ids=state_or_text,
)


# -- a driver is stopped ---------------------------------------------------------------------------------


@on_brokers_at_states
def test_a_driver_that_was_stopped_and_replaced_errs_and_changes_nothing(any_kafka, state):
    """T5: SIGSTOP, the next run of the cursor commits, SIGCONT: the zombie is fenced, for good."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    zombie = experiment.driver("r1", stop_at=state).wait_for(state)
    zombie.pause()
    experiment.run("r2")
    before = experiment.output(), experiment.committed(), described(experiment)
    zombie.resume()
    zombie.release()
    with pytest.raises(RunFenced, match="retry"):
        zombie.result()
    assert (experiment.output(), experiment.committed(), described(experiment)) == before
    experiment.assert_exact()


@pytest.mark.parametrize("state", ZOMBIE_STATES, ids=lambda state: state.value)
def test_a_driver_that_was_replaced_by_its_retry_changes_nothing(experiment, state):
    """T5: given ranges, no cursor: SIGSTOP, the retry commits, SIGCONT: the zombie finds the commit."""
    experiment.feed(20)
    zombie = experiment.driver("r1", ranges=given(experiment), stop_at=state).wait_for(state)
    zombie.pause()
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    zombie.release()
    record = zombie.result()
    assert (record.found, record.try_number) == (True, 2)
    assert experiment.verdict().exact


@on_brokers_at_states
def test_a_zombie_cannot_touch_the_open_transaction_of_its_successor(any_kafka, state):
    """T5: it wakes while the live attempt is one step before its commit: the live one commits, exactly."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    zombie = experiment.driver("r1", stop_at=state).wait_for(state)
    zombie.pause()
    live = experiment.driver("r1", try_number=2, stop_at=State.PROVEN).wait_for(State.PROVEN)
    zombie.resume()
    zombie.release()
    with pytest.raises(RunFenced):
        zombie.result()
    live.release()
    assert live.result().records_written == 20
    experiment.assert_exact()


def test_two_attempts_at_once_leave_one_output(experiment):
    """T5: two attempts at once: one commits, the other finds the commit or is fenced, whichever is first."""
    experiment.run("r0")  # creates the ledger: second and third tries may not
    experiment.feed(40)
    ends = []

    def attempt(number):
        try:
            ends.append(experiment.run("r1", try_number=number))
        except RunFenced as fenced:
            ends.append(fenced)

    threads = [threading.Thread(target=attempt, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ends) == 3
    assert experiment.run("r1", try_number=4).found  # the last to take the epoch has committed
    experiment.assert_exact()


# -- what it may try -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successor", "any_kafka", "state"),
    rest_in_chaos(
        5,
        [
            *(("open", "4.3", state) for state in ZOMBIE_STATES),
            ("committed", "4.3", State.WRITTEN),
            ("open", "3.9", State.WRITTEN),
            ("committed", "3.9", State.WRITTEN),
            *(("committed", "4.3", state) for state in (State.OPEN, State.PROVEN)),
            *product(("open", "committed"), ("3.9",), (State.OPEN, State.PROVEN)),
        ],
    ),
    indirect=["any_kafka"],
    ids=state_or_text,
)
def test_everything_a_zombie_may_try_is_refused(any_kafka, state, successor):
    """T5: with its old identity it aborts, commits, adds partitions and sends again: each is refused."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    zombie = experiment.driver("r1", stop_at=state).wait_for(state)
    transaction = described(experiment)
    old = ProducerIdentity(
        keys.transactional_id(experiment.spec), transaction.producer_id, transaction.producer_epoch
    )
    zombie.pause()
    live = experiment.driver("r1", try_number=2, stop_at=State.PROVEN).wait_for(State.PROVEN)
    if successor == "committed":
        live.release()
        live.result()
    before = described(experiment)
    _try_everything(experiment, old)
    assert described(experiment) == before
    zombie.kill()
    if successor == "open":
        live.release()
        live.result()
    experiment.assert_exact()


def _try_everything(experiment, old):
    with ControlPlane(experiment.spec) as control:
        assert control.transactions.abort(old) is EndTxnAnswer.FENCED
    with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
        assert end_txn(connections, old, commit=True) is EndTxnAnswer.FENCED
        with pytest.raises(ProducerFenced):
            add_partitions_to_txn(connections, old, [TopicPartition(experiment.sink, 0)])
        batches = LocalDataPlane(experiment.spec).seal(given(experiment)).batches
        for tp in batches:
            with pytest.raises(ProducerFenced):
                send_partitions(connections, old, {tp: batches[tp]}, timeout=30)


@on_brokers_at_states
def test_a_zombie_that_initialises_again_behind_the_commit_sends_nothing(any_kafka, state):
    """T5: with law 2 off it aborts and takes a new epoch; the look-up after the fence stops it."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    lawless = {"without": ["may_take_epoch"], "ranges": given(experiment)}
    zombie = experiment.driver("r1", stop_at=state, **lawless).wait_for(state)
    zombie.pause()
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    zombie.release()
    assert zombie.result().found
    assert zombie.states.count(State.FENCED) == 2  # it did take a new epoch
    # In the log, aborted or not: the retry's records, and what the zombie wrote before it was stopped.
    assert len(experiment.output("read_uncommitted")) == (20 if state is State.OPEN else 40)
    assert experiment.verdict().exact


@pytest.mark.parametrize("state", ZOMBIE_STATES, ids=lambda state: state.value)
def test_without_laws_2_and_3_a_zombie_sends_it_all_again(experiment, state):
    """T5, counter-test: abort, initialise, resend, without a ledger look-up: every record is duplicated."""
    experiment.feed(20)
    lawless = {"without": ["may_take_epoch", "ask-again"], "ranges": given(experiment)}
    zombie = experiment.driver("r1", stop_at=state, **lawless).wait_for(state)
    zombie.pause()
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    zombie.release()
    assert not zombie.result().found
    assert judged(experiment) == ([], sorted(experiment.sent))


def test_without_law_2_a_zombie_takes_the_epoch_from_the_live_attempt(experiment):
    """T5, counter-test: a zombie that initialises again aborts its successor's open transaction."""
    experiment.feed(20)
    zombie = experiment.driver("r1", stop_at=State.WRITTEN, without=["may_take_epoch"])
    zombie.wait_for(State.WRITTEN).pause()
    live = experiment.driver("r1", try_number=2, stop_at=State.PROVEN).wait_for(State.PROVEN)
    zombie.resume()
    zombie.release()
    assert not zombie.result().found
    live.release()
    # The live one finds what the zombie committed; had the zombie died after its fence, nobody would have.
    assert live.result().try_number == 1
    assert live.result().found


def test_without_law_7_a_zombie_is_not_fenced_and_writes_twice(experiment, monkeypatch):
    """T5, counter-test: with an id per try both commit: every record is there twice."""
    stable = keys.transactional_id
    experiment.feed(20)
    monkeypatch.setattr(keys, "transactional_id", lambda spec: f"{stable(spec)}.{spec.try_number}")
    # The zombie's open transaction hides what the second try commits: law 12 would wait for it.
    monkeypatch.setattr(laws, "over_everywhere", lambda missing: True)
    zombie = Paused(experiment, State.WRITTEN, "r1", ranges=given(experiment))
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    assert judged(experiment) == ([], sorted(experiment.sent))


# -- an executor is stopped ------------------------------------------------------------------------------


def stopped_half_way(experiment):
    """A data plane whose executor is stopped in its send, until the retry has committed; and the executor."""
    seen = []

    class Stopped(ExecutorPlane):
        def half_written(self, executor):
            if not seen:
                seen.append(executor)
                executor.pause()
                experiment.run("r1", try_number=2, ranges=given(experiment))
                executor.resume()

    return Stopped, seen


def test_an_executor_that_was_stopped_and_replaced_errs_and_changes_nothing(any_kafka):
    """T5: SIGSTOP of an executor in its send, the retry commits, SIGCONT: its next batch is refused."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    plane, executors = stopped_half_way(experiment)
    record = experiment.run("r1", data=plane, ranges=given(experiment))
    assert isinstance(executors[0].error, ProducerFenced)
    assert (record.found, record.try_number) == (True, 2)
    assert 20 < len(experiment.output("read_uncommitted")) < 40  # half of the zombie's send, and the retry's
    assert experiment.verdict().exact


def test_without_law_7_an_executor_goes_on_and_its_driver_commits(experiment, monkeypatch):
    """T5, counter-test: with an id per try nothing fences the executor: both attempts commit."""
    stable = keys.transactional_id
    monkeypatch.setattr(keys, "transactional_id", lambda spec: f"{stable(spec)}.{spec.try_number}")
    # The open transaction of the executor's driver hides the other's output: law 12 would wait for it.
    monkeypatch.setattr(laws, "over_everywhere", lambda missing: True)
    experiment.feed(20)
    plane, executors = stopped_half_way(experiment)
    experiment.run("r1", data=plane, ranges=given(experiment))
    assert executors[0].error is None
    assert judged(experiment) == ([], sorted(experiment.sent))
