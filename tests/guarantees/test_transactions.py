"""T: transactions. Their flow, their coordinator, many topics at once, isolation, zombies, recovery."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from confluent_kafka import KafkaException, Producer

from airflow_eos.broker import KafkaTransactions
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ProducerFenced, RunFailed, RunFenced, SendError
from airflow_eos.model.broker import EndTxnAnswer, TransactionState
from airflow_eos.model.identity import ProducerIdentity
from airflow_eos.model.ranges import Explicit, OffsetRange, TopicPartition
from airflow_eos.run import identity, laws
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.states import State
from airflow_eos.testing.faults import KafkaProxy
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.control import EndTxnResult, add_partitions_to_txn, end_txn
from airflow_eos.wire.produce import send_partitions
from tests.guarantees import plain
from tests.guarantees.driver import in_a_process
from tests.guarantees.lab import Experiment, judged, values
from tests.guarantees.planes import RoutedPlane
from tests.integration.run_support import LocalDataPlane, Paused, Row

EVERY_STATE = (
    State.ASKED, State.FENCED, State.CHECKED, State.PLANNED, State.SEALED,
    State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN, State.COMMITTED,
)  # fmt: skip
ZOMBIE_STATES = (State.OPEN, State.WRITTEN, State.PROVEN)


def described(experiment):
    """What the coordinator says of the pipeline's transactional id."""
    with ControlPlane(experiment.spec) as control:
        return control.cluster.describe_transaction(identity.transactional_id(experiment.spec))


# -- T1: the flow ----------------------------------------------------------------------------------------


def test_the_coordinator_agrees_with_the_trace_at_every_state(any_kafka):
    """T1: empty after the fence, ongoing with ever more partitions, complete when the run says committed."""
    experiment = Experiment(any_kafka)
    experiment.feed(10)
    seen = {}

    def ask(state):
        if state is not State.ASKED:
            seen[state] = described(experiment)

    record = experiment.run(on_state=ask)
    sinks = {TopicPartition(experiment.sink, p) for p in (0, 1)}
    for state in (State.FENCED, State.CHECKED, State.PLANNED, State.SEALED):
        assert seen[state].state is TransactionState.EMPTY
    for state in (State.OPEN, State.WRITTEN):
        assert (seen[state].state, seen[state].partitions) == (TransactionState.ONGOING, sinks)
    for state in (State.STAGED, State.PROVEN):
        assert seen[state].state is TransactionState.ONGOING
        assert {tp.topic for tp in seen[state].partitions - sinks} == {
            experiment.ledger,
            "__consumer_offsets",
        }
    assert seen[State.COMMITTED].state is TransactionState.COMPLETE_COMMIT
    for found in seen.values():
        assert (found.producer_id, found.producer_epoch) == (
            record.producer.producer_id,
            record.producer.producer_epoch,
        )
    times = [seconds for _, seconds in record.trace]
    assert [state for state, _ in record.trace] == [state.value for state in EVERY_STATE]
    assert times == sorted(times)


def test_a_step_that_is_left_out_is_refused(experiment):
    """T1, counter-test: without AddPartitionsToTxn brokers take no batch; the run shows nothing."""
    experiment.feed(10)
    with ControlPlane(experiment.spec) as control:
        fence = control.transactions.fence

        def without_adding(name):
            session = fence(name)
            session.add_partitions = lambda partitions: None
            return session

        control.transactions.fence = without_adding
        spec = experiment.changed(max_send_attempts=1)
        with pytest.raises(RunFailed):
            RunProtocol(spec, control.world(LocalDataPlane(spec))).execute()
    assert experiment.output("read_uncommitted") == []


# -- T2: the coordinator ---------------------------------------------------------------------------------


def coordinator_of(experiment):
    """The broker that coordinates the pipeline's transactional id."""
    name = identity.transactional_id(experiment.spec)
    with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
        node = connections.run(connections.coordinator_async("transaction", name, timeout=30))
    return experiment.kafka.brokers[node - 1]


@pytest.mark.parametrize("state", [State.OPEN, State.WRITTEN, State.PROVEN], ids=lambda state: state.value)
def test_a_coordinator_that_dies_loses_nothing(replicated, state):
    """T2: SIGKILL of the coordinator's broker: the transaction log has a new leader, the run one outcome."""
    replicated.feed(20)
    replicated.run("warm-up")
    replicated.feed(20)
    killed = []

    def kill(entered):
        if entered is state and not killed:
            killed.append(coordinator_of(replicated))
            killed[0].kill()

    record = replicated.run(on_state=kill)
    killed[0].start()
    assert record.records_written == 20
    assert described(replicated).state in (TransactionState.COMPLETE_COMMIT, TransactionState.EMPTY)
    replicated.assert_exact()


@pytest.mark.parametrize("api_answer", ["request lost", "answer lost"])
def test_a_commit_whose_fate_is_unknown_is_found_out(experiment, api_answer, monkeypatch):
    """T2: EndTxn, or its answer, never arrives: the ledger says which, and the run does what it says."""
    # Half a minute otherwise.
    defaults = {
        **(KafkaTransactions.__init__.__kwdefaults__ or {}),
        "commit_timeout": dt.timedelta(seconds=3),
    }
    monkeypatch.setattr(KafkaTransactions.__init__, "__kwdefaults__", defaults)
    experiment.feed(20)
    with KafkaProxy(experiment.kafka.bootstrap_servers) as proxy:
        name = identity.transactional_id(experiment.spec)
        if api_answer == "answer lost":
            fault = proxy.lose_response("EndTxn", silent=True, containing=name)
        else:
            fault = proxy.hold("EndTxn", containing=name)
        record = experiment.run(kafka=proxy.client_config(experiment.kafka.client_config()))
        assert fault.hits == 1
        fault.release()
    states = [state for state, _ in record.trace]
    assert ("UNKNOWN" in states) == (api_answer == "request lost")
    assert record.found == (api_answer == "answer lost")
    experiment.assert_exact()


def test_who_believes_the_lost_answer_writes_twice(experiment):
    """T2, counter-test: the commit's time-out is taken for a failure, and the work done again: duplicates."""
    sent = experiment.feed(20)
    with KafkaProxy(experiment.kafka.bootstrap_servers) as proxy:
        proxy.lose_response("EndTxn", silent=True, containing=experiment.spec.group_id)
        for number in (1, 2):
            producer = Producer(
                {
                    **proxy.client_config(experiment.kafka.client_config()),
                    "transactional.id": f"believer-{experiment.spec.group_id}-{number}",
                    "linger.ms": 0,
                }
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            for value in sent:
                producer.produce(experiment.sink, value=value)
            try:
                producer.commit_transaction(3)
                break
            except KafkaException:
                continue
    assert judged(experiment) == ([], sorted(sent))


# -- T3: several topics ----------------------------------------------------------------------------------


@pytest.fixture
def routed(embedded_kafka):
    """A pipeline with three output topics, one for dead letters."""
    experiment = Experiment(embedded_kafka)
    for suffix in ("odd", "dead"):
        embedded_kafka.create_topic(f"{experiment.sink}-{suffix}", partitions=2)
    experiment.feed(60)
    return experiment


def three_topics(experiment, isolation="read_committed"):
    """Number of records in each of the three output topics."""
    topics = (experiment.sink, f"{experiment.sink}-odd", f"{experiment.sink}-dead")
    return [len(values(experiment.kafka, topic, isolation)) for topic in topics]


def test_three_topics_and_the_offsets_appear_together_or_not_at_all(routed):
    """T3: killed one step before the commit none of the topics shows anything; then all of them do."""
    dead = routed.driver(plane=RoutedPlane, stop_at=State.PROVEN).wait_for(State.PROVEN)
    assert three_topics(routed, "read_uncommitted") == [24, 30, 6]
    dead.kill()
    assert three_topics(routed) == [0, 0, 0]
    assert routed.committed() == [-1, -1]
    routed.run(data=RoutedPlane, try_number=2)
    assert three_topics(routed) == [24, 30, 6]
    assert routed.committed() == [30, 30]


def test_without_a_transaction_some_topics_show_the_crash(routed):
    """T3, contrast: topic after topic, a crash in between: readers see two of three, then two twice."""

    def write(topics):
        producer = Producer({**routed.kafka.client_config(), "linger.ms": 0})
        for out in RoutedPlane(routed.spec).transform([Row("", 0, 0, None, v.encode()) for v in routed.sent]):
            if out.topic in topics:
                producer.produce(out.topic, value=out.value)
        assert producer.flush(30) == 0

    topics = (routed.sink, f"{routed.sink}-odd", f"{routed.sink}-dead")
    write(topics[:2])
    assert three_topics(routed) == [24, 30, 0]
    write(topics)
    assert three_topics(routed) == [48, 60, 6]


# -- T4: isolation ---------------------------------------------------------------------------------------


def test_open_output_is_hidden_at_every_state_until_the_commit(experiment):
    """T4: read_uncommitted sees records from WRITTEN on, read_committed from COMMITTED on, all at once."""
    experiment.feed(20)
    seen = {}

    def look(state):
        seen[state] = (len(experiment.output("read_uncommitted")), len(experiment.output()))

    experiment.run(on_state=look)
    expected = dict.fromkeys(EVERY_STATE, (0, 0))
    expected |= dict.fromkeys((State.WRITTEN, State.STAGED, State.PROVEN), (20, 0))
    assert seen == expected | {State.COMMITTED: (20, 20)}


def test_aborted_output_stays_hidden_for_ever(experiment):
    """T4: an attempt that fails after it wrote: its records stay in the log, and only there."""
    experiment.feed(20)

    class Fails(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            super().send(sealed, identity, timeout)
            raise SendError("lost")

    with pytest.raises(RunFailed):
        experiment.run(data=Fails, max_send_attempts=1)
    assert (len(experiment.output("read_uncommitted")), len(experiment.output())) == (20, 0)
    experiment.run(try_number=2)
    assert (len(experiment.output("read_uncommitted")), len(experiment.output())) == (40, 20)
    experiment.assert_exact()


# -- T5: zombies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ZOMBIE_STATES, ids=lambda state: state.value)
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


def test_everything_a_zombie_may_try_is_refused(any_kafka):
    """T5: with its old identity it aborts, commits, adds partitions and sends again: refused, one by one."""
    experiment = Experiment(any_kafka)
    experiment.feed(20)
    zombie = experiment.driver("r1", stop_at=State.WRITTEN).wait_for(State.WRITTEN)
    found = described(experiment)
    old = ProducerIdentity(
        identity.transactional_id(experiment.spec), found.producer_id, found.producer_epoch
    )
    zombie.pause()
    live = experiment.driver("r1", try_number=2, stop_at=State.PROVEN).wait_for(State.PROVEN)
    before = described(experiment)
    sink = TopicPartition(experiment.sink, 0)
    with ControlPlane(experiment.spec) as control:
        assert control.transactions.abort(old) is EndTxnAnswer.FENCED
    with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
        assert end_txn(connections, old, commit=True) is EndTxnResult.FENCED
        with pytest.raises(ProducerFenced):
            add_partitions_to_txn(connections, old, [sink])
        batches = LocalDataPlane(experiment.spec).seal(everything(experiment)).batches
        with pytest.raises(ProducerFenced):
            send_partitions(connections, old, batches, timeout=30)
    assert described(experiment) == before
    zombie.kill()
    live.release()
    live.result()
    experiment.assert_exact()


def everything(experiment):
    """Ranges over the whole input."""

    class Plan:
        ranges = tuple(OffsetRange(experiment.source, p, 0, 10) for p in (0, 1))

    return Plan


def test_without_law_2_a_zombie_takes_the_epoch_from_the_live_attempt(experiment, monkeypatch):
    """T5, counter-test: a zombie that initialises again aborts its successor's open transaction."""
    experiment.feed(20)
    zombie = Paused(experiment, State.WRITTEN, "r1")
    live = experiment.driver("r1", try_number=2, stop_at=State.PROVEN).wait_for(State.PROVEN)
    monkeypatch.setattr(laws, "may_take_epoch", lambda first_act, answer: True)
    zombie.resume()
    live.release()
    assert zombie.error is None
    # The live one finds what the zombie committed; had the zombie died after its fence, nobody would have.
    assert live.result().try_number == 1
    assert live.result().found


def given(experiment):
    """The whole input as given ranges: no cursor would notice a repetition."""
    return Explicit(everything(experiment).ranges)


@pytest.mark.parametrize("state", ZOMBIE_STATES, ids=lambda state: state.value)
def test_a_zombie_that_initialises_again_behind_the_commit_sends_nothing(experiment, monkeypatch, state):
    """T5: law 2 broken on purpose: it aborts, takes a new epoch; the look-up behind the fence stops it."""
    experiment.feed(20)
    zombie = Paused(experiment, state, "r1", ranges=given(experiment))
    experiment.run("r1", try_number=2, ranges=given(experiment))
    monkeypatch.setattr(laws, "may_take_epoch", lambda first_act, answer: True)
    zombie.resume()
    assert (zombie.error, zombie.record.found) == (None, True)
    assert experiment.verdict().exact


def test_without_laws_2_and_3_a_zombie_sends_it_all_again(experiment, monkeypatch):
    """T5, counter-test: abort, initialise, resend, with nobody asking the ledger: every record is twice."""
    experiment.feed(20)
    zombie = Paused(experiment, State.WRITTEN, "r1", ranges=given(experiment))
    experiment.run("r1", try_number=2, ranges=given(experiment))
    monkeypatch.setattr(laws, "may_take_epoch", lambda first_act, answer: True)
    monkeypatch.setattr(laws, "no_is_final", lambda fenced: True)
    zombie.resume()
    assert zombie.error is None
    assert judged(experiment) == ([], sorted(experiment.sent))


def test_without_law_7_a_zombie_is_not_fenced_and_writes_twice(experiment, monkeypatch):
    """T5, counter-test: with an id per try both commit: every record is there twice."""
    stable = identity.transactional_id
    experiment.feed(20)
    monkeypatch.setattr(identity, "transactional_id", lambda spec: f"{stable(spec)}.{spec.try_number}")
    zombie = Paused(experiment, State.WRITTEN, "r1", ranges=given(experiment))
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    assert judged(experiment) == ([], sorted(experiment.sent))


@pytest.mark.parametrize("state", ZOMBIE_STATES, ids=lambda state: state.value)
def test_a_driver_that_was_replaced_by_its_retry_changes_nothing(experiment, state):
    """T5: given ranges, no cursor to notice: SIGSTOP, the retry commits, SIGCONT: the commit is found."""
    experiment.feed(20)
    zombie = experiment.driver("r1", ranges=given(experiment), stop_at=state).wait_for(state)
    zombie.pause()
    experiment.run("r1", try_number=2, ranges=given(experiment))
    zombie.resume()
    zombie.release()
    record = zombie.result()
    assert (record.found, record.try_number) == (True, 2)
    assert experiment.verdict().exact


def test_two_attempts_at_once_leave_one_output(experiment):
    """T5: twins without any pause: one commits, the other finds it or is fenced; whoever is first."""
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
    experiment.run("r1", try_number=4)
    experiment.assert_exact()


# -- T6: recovery ----------------------------------------------------------------------------------------


def test_offsets_and_output_agree_after_a_kill_at_every_state(any_kafka):
    """T6: SIGKILL at each state in turn; the offsets always say exactly what the output holds."""
    experiment = Experiment(any_kafka)
    for state in EVERY_STATE:
        experiment.feed(10)
        run_id = f"killed at {state.value}"
        dead = experiment.driver(run_id, stop_at=state).wait_for(state)
        dead.kill()
        in_step(experiment)
        record = experiment.run(run_id, try_number=2)
        assert record.found == (state is State.COMMITTED)
        in_step(experiment)
        experiment.assert_exact()


def in_step(experiment):
    """Assert that the output is exactly the input below the committed offsets."""
    offsets = [max(offset, 0) for offset in experiment.committed()]
    taken = [v for v in experiment.sent if int(v.split(":")[1]) < offsets[int(v.split(":")[0])]]
    assert experiment.output() == sorted(taken)


def test_offsets_outside_the_transaction_are_out_of_step_after_a_kill(experiment):
    """T6, contrast: output in a transaction, offsets in a request of their own: a crash in between shows."""
    experiment.feed(20)
    config, group = experiment.kafka.client_config(), experiment.spec.group_id
    arguments = (config, experiment.source, experiment.sink, group, "output first", True)
    assert in_a_process(plain.copy, *arguments, {"transactional.id": f"plain-{group}"}) == -9
    with pytest.raises(AssertionError):
        in_step(experiment)
