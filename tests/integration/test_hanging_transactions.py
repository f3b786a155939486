"""A partition without a leader while its transaction ends: brokers of 4.x forget the marker (KAFKA-20734).

The run does not rely on the coordinator: nothing is written behind an open transaction, and no success is
reported before every leader shows the end.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka.admin import NewTopic
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, NotYetVisible
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TRANSACTIONS_TOPIC, TransactionState
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operations.repair import repair
from airflow_eos.operations.upkeep import sign_ledger
from airflow_eos.run import laws
from airflow_eos.run.states import State
from airflow_eos.run.visibility import Visibility
from airflow_eos.ui.history import RunHistory
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.txn_requests import describe_producers
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.readers import read_topic
from tests.support.brokers import unique
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Pipeline
from tests.support.patience import wait_until

RECORDS = 120
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
AWAY_SECONDS = 3.0
"""How long a broker stays away after the transaction has ended without it."""
QUICK = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "6",
}


@pytest.fixture(scope="module")
def kafka(request):
    """Three brokers of the version that a test names, or of the default one."""
    with EmbeddedKafka(brokers=3, version=getattr(request, "param", None), broker_config=QUICK) as running:
        move_coordinators(running)
        yield running


def move_coordinators(kafka):
    """Let others lead the transaction log: markers get a coordinator epoch above 0, as in old clusters."""
    topics, nodes = AlterPartitionReassignmentsRequest.ReassignableTopic, [1, 2, 3]
    with BrokerConnections(kafka.client_config()) as connections:

        def leaders():
            return connections.topics([TRANSACTIONS_TOPIC])[TRANSACTIONS_TOPIC].leaders

        connections.coordinator("transaction", "any")  # the first look-up creates the topic
        before = wait_until(lambda: -1 not in leaders().values() and leaders())
        following = {
            tp: sorted(nodes, key=lambda node: (node - leader - 1) % 3) for tp, leader in before.items()
        }
        placed = [
            topics.ReassignablePartition(partition_index=tp, replicas=ids) for tp, ids in following.items()
        ]
        reassigned = topics(name=TRANSACTIONS_TOPIC, partitions=placed)
        request = AlterPartitionReassignmentsRequest(topics=[reassigned], timeout_ms=30_000, max_version=0)
        assert connections.run(connections.ask_any_async(request)).error_code == 0
        every = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=30_000)
        assert connections.run(connections.ask_any_async(every)).error_code == 0
        wait_until(lambda: all(leaders()[tp] == ids[0] for tp, ids in following.items()))


ON_4_4 = pytest.mark.parametrize(
    "kafka",
    rest_in_chaos(1, ["4.4.0", None]),
    indirect=True,
    ids=["4.4.0", "default"],
)


class Death(BaseException):
    """The process ends here."""


class Loss(Exception):
    """An attempt fails here."""


class Away:
    """A run, and a broker that goes away at one of its states with the only replica of ``lost``.

    :param lost: ``sink``, ``ledger`` or ``offsets``.
    """

    def __init__(self, kafka, lost):
        self.kafka = kafka
        self.config = kafka.client_config()
        pipeline = self.pipeline = Pipeline(kafka, partitions=2)
        group = pipeline.spec.group_id
        with BrokerConnections(self.config) as connections:
            keeper = connections.coordinator("transaction", keys.transactional_id(pipeline.spec))
            home = connections.coordinator("group", group)
        # Groups are placed by name: find one whose coordinator can be lost alone.
        number = 0
        while home == keeper:
            number += 1
            with BrokerConnections(self.config) as connections:
                name = f"{group}-{number}"
                keeper = connections.coordinator(
                    "transaction", keys.cursor_transactional_id(pipeline.spec.prefix, name)
                )
                home = connections.coordinator("group", name)
            pipeline.spec = replace(pipeline.spec, group_id=name)
        others = [broker.node_id for broker in kafka.brokers if broker.node_id not in (keeper, home)]
        away = home if lost == "offsets" else others[0]
        self.broker = next(broker for broker in kafka.brokers if broker.node_id == away)
        self._place(lost, away, keeper)
        for partition in (0, 1):
            pipeline.publish([f"{partition}-{i}" for i in range(RECORDS)], partition=partition)

    def _place(self, lost, away, keeper):
        pipeline = self.pipeline
        if lost == "sink":
            pipeline.sink = f"{pipeline.sink}-placed"
            self._create(pipeline.sink, [[away], [keeper]])
            pipeline.spec = replace(pipeline.spec, sink_topic=pipeline.sink)
            self.at_risk = TopicPartition(pipeline.sink, 0)
        elif lost == "ledger":
            ledger = f"{pipeline.ledger}-placed"
            self._create(ledger, [[away]], **{"cleanup.policy": "compact"})
            pipeline.spec = replace(pipeline.spec, ledger=LedgerSettings(topic=ledger, partitions=1))
            self.at_risk = TopicPartition(ledger, 0)
        else:
            self.at_risk = None

    def _create(self, name, replicas, **config):
        config = {"min.insync.replicas": "1", **config}
        topic = NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas, config=config)
        self.kafka.admin().create_topics([topic])[name].result()
        wait_until(lambda: self._leaders(name) == [ids[0] for ids in replicas])

    def _leaders(self, name):
        with BrokerConnections(self.config) as connections:
            return [node for _, node in sorted(connections.topics([name])[name].leaders.items())]

    def lose(self):
        """Kill the broker, and wait until the others know."""
        self.broker.kill()
        if self.at_risk is None:
            time.sleep(6)
        else:
            wait_until(lambda: self._leaders(self.at_risk.topic)[self.at_risk.partition] == -1)

    def fill(self):
        """Fill the broker's disk: the next append ends the broker."""
        self.broker.fill_disk()
        self.lose()

    def back(self):
        if not self.broker.is_alive:
            self.broker.start()

    def back_soon(self):
        threading.Timer(AWAY_SECONDS, self.broker.start, kwargs={"wait": False}).start()

    def run(self, at, damage, then=None, **changes):
        """Do the damage at the first entry of a state."""
        done = []

        def hold(entered):
            if entered is at and not done:
                done.append(entered)
                damage()
                if then is not None:
                    then()

        return self.pipeline.run(on_state=hold, **changes)

    def assert_exact(self):
        """Assert that the run's own reader and Kafka's see every record once."""
        expected = Counter(f"{p}-{i}".encode() for p in (0, 1) for i in range(RECORDS))
        counts = Counter(m.value for m in read_topic(self.config, self.pipeline.sink, "read_committed"))
        assert counts == expected

    def open_there(self):
        with BrokerConnections(self.config) as connections:
            producers = describe_producers(connections, [self.at_risk])[self.at_risk]
        return [producer for producer in producers if producer.is_open]


def fail():
    raise Loss("this attempt ends here")


@pytest.fixture
def away(kafka):
    runs = []

    def make(lost):
        runs.append(Away(kafka, lost))
        return runs[-1]

    yield make
    for run in runs:
        run.back()
    kafka.wait_in_sync()


@ON_4_4
@pytest.mark.parametrize("damage", [Away.lose, pytest.param(Away.fill, marks=pytest.mark.chaos)])
def test_what_an_abort_left_open_is_ended_before_the_next_attempt_writes(away, caplog, damage):
    """The coordinator calls the abort complete, but a leader has it open: a commit would publish both."""
    run = away("sink")

    def first_attempt_fails():
        damage(run)
        run.back_soon()
        fail()

    record = run.run(State.WRITTEN, first_attempt_fails)
    assert "markers of an aborted transaction" in caplog.text
    assert record.records_written == 2 * RECORDS
    run.assert_exact()


@pytest.mark.chaos
@ON_4_4
def test_without_the_rules_both_attempts_are_published(away, monkeypatch):
    """Counter-test: without the check before the writes, and without the proof."""
    monkeypatch.setattr(laws, "nothing_open", lambda begins: True)
    monkeypatch.setattr(laws, "begins_with_receipts", lambda *args: None)
    run = away("sink")

    def first_attempt_fails():
        run.lose()
        run.back_soon()
        fail()

    run.run(State.WRITTEN, first_attempt_fails)
    records = read_topic(run.config, run.pipeline.sink, "read_committed")
    assert len(records) > 2 * RECORDS


@pytest.mark.parametrize("lost", rest_in_chaos(1, ["sink", "ledger", "offsets"]))
def test_success_waits_until_every_leader_shows_the_commit(away, caplog, lost):
    """CompleteCommit without a marker: the run writes it once the leader is back, and then succeeds.

    An earlier run of the producer id has left a marker there, whose coordinator epoch a new one must have.
    """
    run = away(lost)
    assert run.pipeline.run("r0").records_written == 2 * RECORDS
    run.pipeline.publish(["later"])
    record = run.run(State.PROVEN, run.lose, run.back_soon)
    assert "markers of a committed transaction" in caplog.text
    assert record.records_written == 1
    assert (len(run.pipeline.output()), run.pipeline.run("r2").records_read) == (2 * RECORDS + 1, 0)


@pytest.mark.chaos
def test_a_coordinator_epoch_that_may_not_be_seen_is_asked_for():
    """Without Read on the offsets' topic nothing tells the epoch of the last marker there."""
    with EmbeddedKafka(security="SASL_PLAINTEXT", acls=True, broker_config=QUICK) as kafka:
        user, pipeline, (broker,) = kafka.user("alice"), Pipeline(kafka, partitions=1), kafka.brokers
        kafka.grant("alice", "READ", topic=pipeline.source)
        kafka.grant("alice", "READ", "WRITE", topic=pipeline.sink)
        kafka.grant("alice", "READ", "WRITE", "CREATE", topic=pipeline.ledger)
        kafka.grant("alice", "DESCRIBE", topic="__consumer_offsets")
        kafka.grant("alice", "READ", group=pipeline.spec.group_id)
        kafka.grant("alice", "WRITE", transactional_id="test.", prefixed=True)
        kafka.grant("alice", "CLUSTER_ACTION", cluster=True)
        logs = broker.data_folder.glob("__consumer_offsets-*/*.log")
        sizes = {}

        def note(state):
            if state is State.PROVEN:
                sizes.update((log, log.stat().st_size) for log in logs)

        def restart(cut):
            broker.kill()
            for log, size in cut.items():
                os.truncate(log, min(size, log.stat().st_size))
            broker.start()

        pipeline.run("r0", kafka=user)
        restart({})  # a restarted coordinator has a later epoch
        pipeline.run("r1", kafka=user)
        pipeline.publish(["a"])
        pipeline.run("r2", kafka=user, on_state=note)
        restart(sizes)
        with pytest.raises(NotYetVisible, match=r"later coordinator epoch.* grant Read on the topic"):
            pipeline.run("r3", kafka=user)
        kafka.grant("alice", "READ", topic="__consumer_offsets")
        assert pipeline.run("r3", kafka=user).records_read == 0
        assert pipeline.output() == ["a"]


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param("sink", marks=pytest.mark.chaos),
        "ledger",
        pytest.param("offsets", marks=pytest.mark.chaos),
    ],
)
def test_a_retry_makes_the_commit_of_a_dead_attempt_visible(away, monkeypatch, lost):
    """The retry asks the leaders before it succeeds; a hidden ledger record does not mean *not committed*."""
    run = away(lost)

    def dies(self, *args, **kwargs):
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(Visibility, "wait", dies)
        with pytest.raises(Death):
            run.run(State.PROVEN, run.lose)
    run.back()
    if run.at_risk is not None:
        assert run.open_there()
    record = run.pipeline.run(try_number=2)
    assert record.found
    assert record.try_number == 1
    run.assert_exact()
    assert run.pipeline.run("r2").records_read == 0


def health(run):
    """Return what the page reports on transactions that were left open."""
    with RunHistory(run.pipeline.spec.deployment) as history:
        history.refresh()
        checks = history.health(sources=(), sinks=[run.pipeline.sink])
    return next((check.status, check.found) for check in checks if check.name == "transactions left open")


def test_the_command_ends_it_as_it_was_decided(away, monkeypatch):
    """Dry run first; the ledger tells a commit from an abort. Afterwards nothing is open.

    The page's health finds it, too.
    """
    run = away("sink")

    def dies(self, *args, **kwargs):
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(Visibility, "wait", dies)
        with pytest.raises(Death):
            run.run(State.PROVEN, run.lose)
    run.back()
    spec = run.pipeline.spec
    assert health(run) == ("fail", f"{run.at_risk} from 0")
    (hanging,) = repair(spec.deployment).transactions
    assert (hanging.partition, hanging.start_offset, hanging.decision) == (str(run.at_risk), 0, "commit")
    assert not hanging.done
    assert run.open_there()
    assert [ended.done for ended in repair(spec.deployment, execute=True).transactions] == [True]
    run.assert_exact()
    assert repair(spec.deployment).transactions == ()
    assert health(run)[0] == "ok"


@pytest.mark.parametrize("looks", [True, pytest.param(False, marks=pytest.mark.chaos)])
def test_what_a_command_left_open_is_not_published_by_the_next(kafka, monkeypatch, looks):
    """A tombstone aborted while the leader was away: `sign`, with the same id, ends it before it writes.

    :param looks: whether leaders are asked; otherwise the aborted tombstone counts.
    """
    config, topic = kafka.client_config(), unique("ledger")
    settings = LedgerSettings(topic=topic, partitions=1, key="the-secret-of-this-ledger")
    name, place = keys.ledger_transactional_id("test", topic), TopicPartition(topic, 0)
    with BrokerConnections(config) as connections:
        keeper = connections.coordinator("transaction", name)
    broker = next(broker for broker in kafka.brokers if broker.node_id != keeper)
    new = NewTopic(
        topic, num_partitions=1, replica_assignment=[[broker.node_id]], config={"min.insync.replicas": "1"}
    )
    kafka.admin().create_topics([new])[topic].result()

    def leader():
        with BrokerConnections(config) as connections:
            return connections.topics([topic])[topic].leaders.get(place.partition)

    wait_until(lambda: leader() == broker.node_id)
    with ControlPlane(Deployment(config, settings, "test")) as control:
        session = control.transactions.fence(name)
        session.begin()
        session.stage("", {}, [LedgerMessage("run:of-somebody", None, "", 0)])
        broker.kill()
        try:
            wait_until(lambda: leader() == -1)
            control.transactions.abort(session.identity)
            wait_until(lambda: control.cluster.describe_transaction(name).state is COMPLETE_ABORT)
        finally:
            broker.start()
            session.close()
    wait_until(lambda: leader() == broker.node_id)
    if not looks:
        monkeypatch.setattr("airflow_eos.ledger.writer.open_of", lambda *_: {})
        monkeypatch.setattr("airflow_eos.operations.upkeep._nothing_else", lambda *_: None)
    sign_ledger(Deployment(config, settings, "test"))
    kafka.wait_in_sync()
    seen = [record.key for record in read_topic(config, topic, "read_committed")]
    assert seen == ([b"ledger:signed"] if looks else [b"run:of-somebody", b"ledger:signed"])


@pytest.mark.chaos
def test_a_commit_that_stays_hidden_is_never_green(away, monkeypatch):
    """If this principal may not write markers, the error names the partition and the remedy."""
    run = away("sink")

    def forbidden(self, *args, **kwargs):
        raise AuthorizationFailed("CLUSTER_AUTHORIZATION_FAILED")

    monkeypatch.setattr("airflow_eos.broker.transactions.KafkaTransactions.write_markers", forbidden)
    with pytest.raises(NotYetVisible, match=str(run.at_risk)):
        run.run(State.PROVEN, run.lose, run.back_soon)
    monkeypatch.undo()
    assert run.pipeline.run(try_number=2).found
    run.assert_exact()


@pytest.mark.chaos
@pytest.mark.parametrize("kafka", ["3.9.2"], indirect=True)
@pytest.mark.parametrize("state", [State.WRITTEN, State.PROVEN])
def test_brokers_of_3_9_wait_for_the_leader(kafka, state, caplog):
    """They write the marker when the leader is back: the same run succeeds, without a repair."""
    run = Away(kafka, "sink")

    def damage():
        run.lose()
        run.back_soon()
        if state is State.WRITTEN:
            fail()

    run.run(state, damage)
    run.assert_exact()
    kafka.wait_in_sync()
    assert "are missing; writing them now" not in caplog.text
