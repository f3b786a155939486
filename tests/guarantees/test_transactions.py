"""T: transactions. Their flow, their coordinator, many topics at once, isolation, recovery.

Zombies (T5) have a file of their own: :mod:`tests.guarantees.test_transactions_zombies`.
"""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from airflow_eos.broker.transactions import KafkaSession
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import RunFailed, SendError
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TransactionState
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.lookup import CommittedRuns
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.states import State
from airflow_eos.wire import txn_offsets
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing import read_topic
from airflow_eos_testing.agreement import ledger_records
from airflow_eos_testing.faults import KafkaProxy
from airflow_eos_testing.oracle import judge
from tests.guarantees import without_law, without_transactions
from tests.guarantees.data_planes import RoutedPlane
from tests.guarantees.driver import in_a_process
from tests.guarantees.experiment import Experiment, described, given, judged, values
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import LocalDataPlane, Row
from tests.support.markers import wait_for_markers
from tests.support.patience import wait_until

EVERY_STATE = (
    State.ASKED, State.FENCED, State.CHECKED, State.PLANNED, State.SEALED,
    State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN, State.COMMITTED,
)  # fmt: skip


# -- T1: the flow ----------------------------------------------------------------------------------------


def test_the_coordinator_agrees_with_the_trace_at_every_state(any_kafka):
    """T1: empty after the fence, ongoing with more and more partitions, complete when the run is committed.

    Leaders write their markers before the coordinator notes that all have: the run waits for the leaders.
    """
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
    decided = {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
    assert seen[State.COMMITTED].state in decided
    wait_until(lambda: described(experiment).state is TransactionState.COMPLETE_COMMIT)
    for transaction in seen.values():
        assert (transaction.producer_id, transaction.producer_epoch) == (
            record.producer.producer_id,
            record.producer.producer_epoch,
        )
    times = [seconds for _, seconds in record.trace]
    assert [state for state, _ in record.trace] == [state.value for state in EVERY_STATE]
    assert times == sorted(times)


STEPS = {
    # Requests whose first one must have been sent when a state is entered, and not before.
    State.FENCED: ["FindCoordinator", "InitProducerId"],
    State.CHECKED: ["DescribeProducers"],
    State.OPEN: ["AddPartitionsToTxn"],
    State.WRITTEN: ["Produce"],
    State.STAGED: ["AddOffsetsToTxn", "TxnOffsetCommit"],
    State.COMMITTED: ["EndTxn"],
}


def test_each_request_of_the_flow_is_sent_in_its_state(any_kafka):
    """T1: on the wire, as the trace says: InitProducerId, AddPartitionsToTxn, Produce, ..., EndTxn."""
    experiment = Experiment(any_kafka)
    experiment.run("warm-up")  # makes the ledger
    experiment.feed(10)
    first = {}
    with KafkaProxy(any_kafka.bootstrap_servers) as proxy:

        def look(state):
            for api in itertools.chain.from_iterable(STEPS.values()):
                if proxy.seen(api):
                    first.setdefault(api, state)

        record = experiment.run(on_state=look, kafka=proxy.client_config(any_kafka.client_config()))
    assert first == {api: state for state, apis in STEPS.items() for api in apis} | {
        "FindCoordinator": State.ASKED if first["FindCoordinator"] is State.ASKED else State.FENCED
    }
    assert [state for state, _ in record.trace] == [state.value for state in EVERY_STATE]


def test_the_transaction_log_tells_the_same_story(any_kafka):
    """T1: __transaction_state has the states Empty to CompleteCommit, and other ones for the abort."""
    experiment = Experiment(any_kafka)
    experiment.feed(10)
    dead = experiment.driver("r1", stop_at=State.WRITTEN).wait_for(State.WRITTEN)
    dead.kill()
    experiment.run("r1", try_number=2)
    story = [state for state, _ in itertools.groupby(transaction_log(experiment))]
    assert story == [
        "Empty", "Ongoing", "PrepareAbort", "CompleteAbort",
        "Empty", "Ongoing", "PrepareCommit", "CompleteCommit",
    ]  # fmt: skip


_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
           "PrepareEpochFence")  # fmt: skip


def transaction_log(experiment):
    """States of the pipeline's transactional id, as the topic __transaction_state has them.

    A key is a version and a string; a value a version, producer id 8, epoch 2, time-out 4, state 1, ...
    (TransactionLogKey.json, TransactionLogValue.json).
    """
    wanted = keys.transactional_id(experiment.spec).encode()
    records = read_topic(experiment.kafka.client_config(), "__transaction_state", "read_uncommitted")
    return [_STATES[r.value[16]] for r in records if r.value is not None and r.key[4:] == wanted]


def test_a_step_that_is_left_out_is_refused(experiment):
    """T1, counter-test: without AddPartitionsToTxn the brokers refuse every batch: no output is visible."""
    experiment.feed(10)
    with ControlPlane(experiment.spec) as control:
        fence = control.transactions.fence

        def without_adding(name):
            session = fence(name)
            session.add_partitions = lambda partitions: None
            return session

        control.transactions.fence = without_adding
        spec = experiment.changed(max_send_attempts=1)
        with pytest.raises(RunFailed, match="the partition is not in the transaction"):
            RunProtocol(spec, control.collaborators(LocalDataPlane(spec))).execute()
    assert experiment.output("read_uncommitted") == []


# -- T2: the coordinator ---------------------------------------------------------------------------------


def coordinator_of(experiment):
    """The broker that coordinates the pipeline's transactional id."""
    name = keys.transactional_id(experiment.spec)
    with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
        node = connections.run(connections.coordinator_async("transaction", name, timeout=30))
    return experiment.kafka.brokers[node - 1]


@pytest.mark.parametrize(
    "state", rest_in_chaos(2, [State.OPEN, State.PROVEN, State.WRITTEN]), ids=lambda state: state.value
)
def test_a_coordinator_that_dies_loses_nothing(replicated, state):
    """T2: the coordinator's broker is killed: the transaction log gets a new leader, the run one outcome."""
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


def test_a_coordinator_that_dies_while_it_answers_the_commit_loses_nothing(replicated):
    """T2: the coordinator dies between EndTxn and its answer: its successor knows the outcome."""
    replicated.feed(20)
    replicated.run("warm-up")
    replicated.feed(20)
    states, carried_out = [], []
    with KafkaProxy(replicated.kafka.bootstrap_servers) as proxy:
        fault = proxy.hold("EndTxn", response=True, containing=keys.transactional_id(replicated.spec))

        def kill():
            fault.wait()
            carried_out.append(described(replicated).state)
            victim = coordinator_of(replicated)
            victim.kill()
            fault.release(drop=True)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        config = proxy.client_config(replicated.kafka.client_config())
        record = replicated.run(kafka=config, on_state=states.append)
        killer.join(60)
        assert fault.hits == 1
    assert carried_out[0] in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    assert record.records_written == 20
    assert sum(not broker.is_alive for broker in replicated.kafka.brokers) == 1
    # The successor answers the repeated EndTxn; if it comes too late for that, the run asks the ledger.
    assert states.count(State.WRITTEN) == 1
    assert states[-2:] == ([State.UNKNOWN, State.FENCED] if record.found else [State.PROVEN, State.COMMITTED])
    replicated.assert_exact()


def lost_commit(experiment, monkeypatch, lost, **changes):
    """Run while EndTxn, or its answer, never arrives; return the record, and states and look-ups in order.

    A look-up is a pair: whether it was after the fence, and whether the ledger had the run.
    """
    story, ask, commit = [], CommittedRuns.ask, KafkaSession.commit

    def impatient(self):
        if State.UNKNOWN not in story:
            self.commit_timeout = 3.0  # half a minute otherwise
        commit(self)

    monkeypatch.setattr(KafkaSession, "commit", impatient)

    def ask_and_note(self, *, fenced):
        answer = ask(self, fenced=fenced)
        story.append((fenced, answer is not None))
        return answer

    monkeypatch.setattr(CommittedRuns, "ask", ask_and_note)
    with KafkaProxy(experiment.kafka.bootstrap_servers) as proxy:
        name = keys.transactional_id(experiment.changed(**changes))
        if lost == "answer lost":
            fault = proxy.lose_response("EndTxn", silent=True, containing=name)
        else:
            fault = proxy.hold("EndTxn", containing=name)

        def note(state):
            story.append(state)
            if state is State.UNKNOWN:
                fault.wait()  # the request is held, or carried out, before the abort asks

        config = proxy.client_config(experiment.kafka.client_config())
        record = experiment.run(kafka=config, on_state=note, **changes)
        assert fault.hits == 1
        fault.release()
    return record, story


@pytest.mark.parametrize("lost", ["request lost", "answer lost"])
def test_a_commit_whose_fate_is_unknown_is_found_out(experiment, lost, monkeypatch):
    """T2: EndTxn or its answer is lost: the ledger tells whether the run is committed; the run obeys it."""
    experiment.feed(20)
    record, story = lost_commit(experiment, monkeypatch, lost)
    states = [state for state, _ in record.trace]
    assert ("UNKNOWN" in states) == (lost == "request lost")
    assert record.found == (lost == "answer lost")
    # The outcome comes from the ledger, asked after the next fence, not from a late answer.
    behind = story[story.index(State.UNKNOWN) + 1 :]
    assert behind[:2] == [State.FENCED, (True, lost == "answer lost")]
    assert behind[-1] == ((True, True) if lost == "answer lost" else State.COMMITTED)
    experiment.assert_exact()


def test_given_ranges_whose_commit_has_lost_its_answer_are_written_once(experiment, monkeypatch):
    """T2: ranges that no cursor guards: the ledger alone says that they are committed."""
    experiment.feed(20)
    record, story = lost_commit(experiment, monkeypatch, "answer lost", ranges=given(experiment))
    assert record.found
    assert story[-3:] == [State.UNKNOWN, State.FENCED, (True, True)]
    assert experiment.verdict().exact
    assert len(ledger_of(experiment)) == 1


def test_without_law_3_a_commit_that_has_lost_its_answer_is_repeated(experiment, monkeypatch):
    """T2, counter-test: the ledger is not asked after the fence: the same ranges are written twice."""
    without_law.remove("ask-again", monkeypatch.setattr)
    sent = experiment.feed(20)
    record, story = lost_commit(experiment, monkeypatch, "answer lost", ranges=given(experiment))
    assert not record.found
    assert story[story.index(State.UNKNOWN) + 1] is State.FENCED
    assert story[-1] is State.COMMITTED
    assert judged(experiment) == ([], sorted(sent))
    assert len(ledger_of(experiment)) == 2


def ledger_of(experiment):
    """The pipeline's run records in the ledger, repeated ones too."""
    return ledger_records(experiment.kafka.client_config(), experiment.ledger, experiment.spec.pipeline)


@pytest.mark.parametrize("silent", [False, True], ids=["cut", "silent"])
@pytest.mark.parametrize("api", ["AddOffsetsToTxn", "TxnOffsetCommit"])
def test_a_coordinator_that_loses_the_offsets_is_asked_again(experiment, monkeypatch, api, silent):
    """T2: the answer to the offsets request is lost: the same transaction sends it again."""
    monkeypatch.setattr(txn_offsets, "ANSWER_TIMEOUT", 1.0)
    experiment.feed(20)
    with KafkaProxy(experiment.kafka.bootstrap_servers) as proxy:
        # Lose every answer until one was lost: on a slow broker the run may time out before the first one.
        fault = proxy.lose_response(api, times=None, silent=silent, containing=experiment.spec.group_id)

        def lose_one():
            fault.wait()
            fault.cancel()

        loser = threading.Thread(target=lose_one, daemon=True)
        loser.start()
        config = proxy.client_config(experiment.kafka.client_config())
        record = experiment.run(kafka=config)
        loser.join(60)
    assert fault.hits >= 1
    # Count requests, not answers: the coordinator has carried out each of them.
    assert proxy.seen(api) > fault.hits
    assert "ABORTED" not in [state for state, _ in record.trace]
    experiment.assert_exact()


def test_a_group_coordinator_that_never_answers_costs_a_new_epoch(experiment, monkeypatch):
    """T2: its request times out, and a new epoch sends everything again; late offsets are refused."""
    commit, given_up = txn_offsets.commit_offsets_in_txn, iter([2.0])  # half a minute otherwise

    def impatient(*arguments, timeout):
        commit(*arguments, timeout=next(given_up, timeout))

    monkeypatch.setattr(txn_offsets, "commit_offsets_in_txn", impatient)
    experiment.feed(20)
    with KafkaProxy(experiment.kafka.bootstrap_servers) as proxy:
        faults = []

        def never_answer(state):
            if state is State.WRITTEN and not faults:
                faults.append(proxy.hold("TxnOffsetCommit", containing=experiment.spec.group_id))

        config = proxy.client_config(experiment.kafka.client_config())
        record = experiment.run(on_state=never_answer, kafka=config)
        assert [fault.hits for fault in faults] == [1]
        assert [state for state, _ in record.trace].count("WRITTEN") == 2
        assert record.producer.producer_epoch > 0  # the first one
        assert record.records_written == 20
        experiment.assert_exact()
        # The group has moved on by then: late offsets would move it back.
        experiment.feed(20)
        experiment.run("r2")
        faults[0].release()
        time.sleep(1)
    experiment.assert_exact()


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


def judged_together(experiment):
    """Return the oracle's verdict on the three output topics together, by tag."""
    topics = (experiment.sink, f"{experiment.sink}-odd", f"{experiment.sink}-dead")
    config = experiment.kafka.client_config()
    return judge(experiment.sent, itertools.chain(*(read_topic(config, topic) for topic in topics)))


def test_three_topics_and_the_offsets_appear_together_or_not_at_all(routed):
    """T3: killed just before the commit, no topic shows anything; after the retry, all of them do."""
    dead = routed.driver(plane=RoutedPlane, stop_at=State.PROVEN).wait_for(State.PROVEN)
    assert three_topics(routed, "read_uncommitted") == [24, 30, 6]
    dead.kill()
    assert three_topics(routed) == [0, 0, 0]
    assert routed.committed() == [-1, -1]
    routed.run(data=RoutedPlane, try_number=2)
    assert three_topics(routed) == [24, 30, 6]
    verdict = judged_together(routed)
    assert verdict.exact, verdict.complaints()
    assert routed.committed() == [30, 30]


def test_without_a_transaction_some_topics_show_the_crash(routed):
    """T3, contrast: SIGKILL between two topics: readers see two of three, and after the retry those twice."""
    outputs = {routed.sink: [], f"{routed.sink}-odd": [], f"{routed.sink}-dead": []}
    for out in RoutedPlane(routed.spec).transform([Row("", 0, 0, None, v.encode()) for v in routed.sent]):
        outputs[out.topic].append(out.value)
    job = (without_transactions.topic_by_topic, routed.kafka.client_config(), outputs)
    dead_letters = {value.decode() for value in outputs[f"{routed.sink}-dead"]}

    assert in_a_process(*job, f"{routed.sink}-dead") == -9
    assert three_topics(routed) == [24, 30, 0]
    assert set(judged_together(routed).lost) == dead_letters
    assert in_a_process(*job) == 0
    assert three_topics(routed) == [48, 60, 6]
    verdict = judged_together(routed)
    assert (verdict.lost, set(verdict.duplicated)) == ((), set(routed.sent) - dead_letters)


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
    """T4: records of an attempt that fails after its writes stay in the log, and no reader sees them."""
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
    experiment.assert_log_as_claimed()


def in_step(experiment):
    """Assert that the output is exactly the input below the committed offsets."""
    offsets = [max(offset, 0) for offset in experiment.committed()]
    taken = [v for v in experiment.sent if int(v.split(":")[1]) < offsets[int(v.split(":")[0])]]
    assert experiment.output() == sorted(taken)


def test_offsets_outside_the_transaction_are_out_of_step_after_a_kill(experiment):
    """T6, contrast: output in a transaction, offsets in a separate request: a crash separates them."""
    experiment.feed(20)
    config, group = experiment.kafka.client_config(), experiment.spec.group_id
    arguments = (config, experiment.source, experiment.sink, group, "output first", True)
    assert in_a_process(without_transactions.copy, *arguments, {"transactional.id": f"plain-{group}"}) == -9
    wait_for_markers(config, [TopicPartition(experiment.sink, p) for p in (0, 1)])
    with pytest.raises(AssertionError):
        in_step(experiment)
