"""Three brokers, one of them dead: every request is answered, and a transaction commits."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ConfigResource, NewTopic
from kafka.protocol.admin import AlterPartitionReassignmentsRequest

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.broker.shared_connections import Link
from airflow_eos.cli.definition import FOUND
from airflow_eos.cli.main import main
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import BrokersUnavailable, NotYetVisible
from airflow_eos.ledger.keys import cursor_transactional_id
from airflow_eos.model.kafka import BrokerFeatures, CommittedOffset, EndTxnAnswer, TransactionState
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.operations.checks import CHECK_PATIENCE, Check, brokers_answer
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.repair import repair
from airflow_eos.run.states import State
from airflow_eos.ui.history import RunHistory
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.groups import offsets_partition_of
from airflow_eos.wire.offsets import list_offsets
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import (
    add_partitions_to_txn,
    describe_producers,
    describe_transaction,
    end_txn,
)
from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.support import wire_requests as wire
from tests.support.brokers import make_transactions, message, tp
from tests.support.ledger_values import texts
from tests.support.local_runs import Pipeline
from tests.support.patience import eventually, wait_until
from tests.support.topic_settings import change_topic


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka(brokers=3, broker_config=wire.QUICK_SESSIONS) as running:
        yield running


def leader(config, topic, partition=0):
    with BrokerConnections(config) as connections:
        return connections.topics([topic])[topic].leaders[partition]


def test_a_ledger_of_three_replicas_survives_one(kafka):
    """min.insync.replicas is one below the replication factor."""
    with Link(kafka.client_config()) as link:
        ledger = KafkaLedger(link, LedgerSettings(topic="three", partitions=2, replication_factor=3))
        ledger.create()
        assert ledger.describe().partitions == 2
    shown = wait_until(lambda: settings_of(kafka, "three"))
    assert shown["min.insync.replicas"].value == "2"


def settings_of(kafka, topic):
    """Return a topic's settings; None from a broker that does not know it yet."""
    resource = ConfigResource("topic", topic)
    try:
        return kafka.admin().describe_configs([resource])[resource].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None


def test_everything_goes_on_when_a_leader_and_coordinator_dies(kafka):
    """Reads are retried until the new leader answers; staging, commit and look-up succeed."""
    config, name, group = kafka.client_config(), "failover", "failover-group"
    settings = LedgerSettings(topic="failover-ledger", partitions=1, replication_factor=3)
    with Link(config) as link:
        cluster, ledger = KafkaCluster(link), KafkaLedger(link, settings)
        ledger.create()
        partition = tp(ledger.topic)
        # Long enough for a fail-over on a slow machine: the run's own defaults.
        times = {
            "transaction_timeout": dt.timedelta(seconds=300),
            "delivery_timeout": dt.timedelta(seconds=120),
        }
        transactions = make_transactions(config, ledger, link, **times)
        session = transactions.fence(name)
        session.begin()
        session.add_partitions([partition])
        kafka.wait_in_sync()
        with BrokerConnections(config) as connections:
            coordinator = connections.coordinator("transaction", name)
        victims = {coordinator, leader(config, ledger.topic)}
        victim = next(broker for broker in kafka.brokers if broker.node_id in victims)
        victim.kill()
        try:
            session.stage(group, {partition: CommittedOffset(4, "meta")}, [message("run", "{}")])
            assert cluster.describe_transaction(name).state is TransactionState.ONGOING
            assert cluster.describe_producers([partition])[partition][0].last_sequence == 0
            assert cluster.last_stable_offsets([partition]) == {partition: 0}
            assert [entry.key for entry in ledger.view(0, ["run"]).tail] == ["run"]
            assert cluster.describe_group(group).members == 0
            assert cluster.features().partition_verification is True
            session.commit()
            session.close()
            assert cluster.committed(group, [partition]) == {partition: CommittedOffset(4, "meta")}
            wait_until(lambda: texts(ledger.view(0, ["run"]).committed) == {"run": "{}"})
            assert transactions.abort(session.identity) is EndTxnAnswer.NOTHING_OPEN
            assert [record.key for record in read_topic(config, ledger.topic)] == [b"run"]
            following = transactions.fence(name)
            following.close()
            assert following.identity.producer_epoch > session.identity.producer_epoch
        finally:
            victim.start()


def test_a_coordinator_that_moves_is_followed(kafka, kafka_topic):
    """The coordinator is killed: requests to add, describe and end go to the new one."""
    kafka.wait_in_sync()
    partition = tp(kafka_topic("coordinated", kafka=kafka))
    with BrokerConnections(kafka.client_config()) as connections:
        identity = wire.take_epoch(connections, "coordinated")
        victim = kafka.brokers[connections.coordinator("transaction", "coordinated") - 1]
        victim.kill()
        add_partitions_to_txn(connections, identity, [partition])
        assert describe_transaction(connections, "coordinated").partitions == {partition}
        assert describe_producers(connections, [partition]) == {partition: ()}
        assert end_txn(connections, identity, commit=False) is EndTxnAnswer.ENDED
        victim.start()
    kafka.wait_in_sync()


def test_reading_follows_the_leader(kafka, kafka_topic):
    """The leader is killed in the middle of a read: the rest comes from the new one, exactly."""
    kafka.wait_in_sync()
    source = tp(kafka_topic("moving", kafka=kafka))
    with BrokerConnections(kafka.client_config()) as connections:
        wire.transaction(connections, source, wire.texts("a", 400), records_per_batch=4)
        end = wire.end_of(connections, source)
        reader = wire.fetch_range(connections, source.topic, 0, 0, end, max_bytes=1)
        got = [value for _ in range(20) for value in next(reader).value.to_pylist()]
        victim = kafka.brokers[connections.topics([source.topic])[source.topic].leaders[source.partition] - 1]
        victim.kill()
        got += [value for batch in reader for value in batch.value.to_pylist()]
        assert [value.decode() for value in got] == wire.texts("a", 400)
        victim.start()
        kafka.wait_in_sync()


@pytest.mark.parametrize("fault", ["kill", pytest.param("pause", marks=pytest.mark.chaos)])
def test_writing_follows_the_leader(kafka, kafka_topic, fault):
    """The leader of some partitions is killed, or frozen, in the middle of a send: exact after the commit."""
    kafka.wait_in_sync()
    topic = kafka_topic(fault, partitions=6, kafka=kafka)
    every = [tp(topic, n) for n in range(6)]
    with BrokerConnections(kafka.client_config()) as connections:
        identity = wire.open_transaction(connections, topic, every)
        victim = kafka.brokers[connections.topics([topic])[topic].leaders[every[0].partition] - 1]
        timer = wire.during(0.4, getattr(victim, fault))
        batches = {
            partition: wire.slowly(wire.sealed(wire.texts(str(partition), 300)), 0.005) for partition in every
        }
        receipts = send_partitions(connections, identity, batches)
        timer.join()
        if fault == "kill":
            victim.start()
        else:
            victim.resume()
        assert [r.records for r in receipts] == [300] * 6
        wire.commit(connections, identity, receipts)
        for partition in every:
            assert wire.values_of(wire.read(connections, partition)) == wire.texts(str(partition), 300)
    kafka.wait_in_sync()


def test_brokers_that_changed_addresses_with_each_other_are_asked_at_their_own(kafka, kafka_topic):
    """A client with old metadata connects to another broker, which answers, although it is the wrong one."""
    kafka.wait_in_sync()
    topic = kafka_topic("readdressed", partitions=3, kafka=kafka)
    every = [tp(topic, n) for n in range(3)]

    def forget_addresses(connections):
        cluster, nodes = connections._manager.cluster, [1, 2, 3]
        brokers = [cluster._brokers[node] for node in (2, 3, 1)]
        for node, other in zip(nodes, brokers, strict=True):
            cluster._brokers[node] = type(other)(node, other.host, other.port, other.rack)
            connections.hang_up(node)

    with BrokerConnections(kafka.client_config()) as connections:
        connections.topics([topic])
        for ask in (
            lambda: list_offsets(connections, every, "latest"),
            lambda: [describe_transaction(connections, f"readdressed-{n}") for n in range(5)],
            lambda: send_partitions(
                connections,
                wire.open_transaction(connections, topic, every),
                {partition: wire.sealed(["a"]) for partition in every},
            ),
        ):
            forget_addresses(connections)
            connections.patience = 5.0
            ask()


@pytest.mark.chaos
@pytest.mark.parametrize("state", [State.SEALED, State.PROVEN])
def test_a_frozen_coordinator_costs_no_attempt(kafka, caplog, state):
    """Its connections stay open without answers: the run asks other brokers, in the same attempt."""
    kafka.wait_in_sync()
    pipeline = Pipeline(kafka)
    pipeline.publish(["a", "b"])
    name = cursor_transactional_id("test", pipeline.spec.group_id)
    with BrokerConnections(pipeline.spec.kafka) as connections:
        frozen = kafka.brokers[connections.coordinator("transaction", name) - 1]
    began = time.monotonic()
    try:
        record = pipeline.run(on_state=lambda entered: frozen.pause() if entered is state else None)
        seconds = time.monotonic() - began
    finally:
        frozen.resume()
    kafka.wait_in_sync()
    assert (record.records_written, pipeline.output()) == (2, ["a", "b"])
    assert seconds < 100
    assert "aborting its transaction" not in caplog.text
    assert "the answer of the commit is missing" not in caplog.text


def test_brokers_that_do_not_answer_are_named(kafka):
    """Without a controller majority, metadata still lists them; no check waits for a minute."""
    kafka.wait_in_sync()
    pipeline = Pipeline(kafka)
    away = kafka.brokers[1:]
    with ControlPlane(pipeline.spec) as control:
        control.cluster.limit_patience(CHECK_PATIENCE)
        assert brokers_answer(control, 3) == Check("brokers", "ok", "3 reachable")
        for broker in away:
            broker.kill()
        try:
            check = brokers_answer(control, 3)
            assert (check.status, check.found) == ("fail", "of 3, these do not answer: 2, 3")
            with pytest.raises(BrokersUnavailable, match="no answer within 10 s"):
                control.cluster.log_ends([tp(pipeline.source, 0), tp(pipeline.source, 1)])
        finally:
            for broker in away:
                broker.start(wait=False)
            for broker in away:
                broker.wait_until_ready(timeout=60)
            kafka.wait_in_sync()


def test_broker_settings_are_read_though_a_known_broker_is_dead(kafka):
    """The settings of the brokers that answer count; the one that has died since is left out."""
    victim = kafka.brokers[0]
    with Link(kafka.client_config()) as link:
        cluster = KafkaCluster(link)
        before = cluster.features()
        kafka.wait_in_sync()
        victim.kill()
        try:
            assert (
                cluster.features()
                == before
                == BrokerFeatures(
                    partition_verification=True,
                    transaction_max_timeout_ms=900_000,
                    transactional_id_expiration_ms=7 * 24 * 3600 * 1000,
                )
            )
        finally:
            victim.start()
            kafka.wait_in_sync()


def test_a_sink_with_too_few_replicas_in_sync_is_named(kafka, monkeypatch):
    """The doctor, which the error advises, names the partitions that take no write, until they do."""
    initialise = TransactionalProducer.initialise
    monkeypatch.setattr(
        TransactionalProducer,
        "initialise",
        lambda producer, _timeout, **named: initialise(producer, 10.0, **named),
    )
    pipeline = Pipeline(kafka, partitions=1, sink_config={"min.insync.replicas": "3"})
    spec = pipeline.spec
    pipeline.publish(["a"])
    kafka.wait_in_sync()
    victim = kafka.brokers[0]
    victim.kill()
    try:
        replicas = wait_for_replicas(spec.deployment, pipeline.sink, "fail")
        assert replicas == "3 replicas, min.insync.replicas=3; partition 0 has 2 in sync"
        with pytest.raises(BrokersUnavailable, match=r"CONCURRENT_TRANSACTIONS.*`airflow eos doctor --sink"):
            pipeline.run("r1", delivery_timeout=dt.timedelta(seconds=5))
    finally:
        victim.start()
    wait_for_replicas(spec.deployment, pipeline.sink, "warn")
    assert pipeline.run("r1").records_written == 1


@pytest.mark.chaos
def test_a_transaction_log_with_too_few_replicas_in_sync_is_named(kafka, monkeypatch):
    """The doctor, which the error advises, names the brokers' internal topic that takes no write."""
    initialise = TransactionalProducer.initialise
    monkeypatch.setattr(
        TransactionalProducer,
        "initialise",
        lambda producer, _timeout, **named: initialise(producer, 10.0, **named),
    )
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish(["a"])
    pipeline.run("r1")
    with needing_all(kafka, "__transaction_state"):
        replicas = wait_for_replicas(pipeline.spec.deployment, "__transaction_state", "fail")
        assert replicas.startswith("3 replicas, min.insync.replicas=3; partition 0 has 2 in sync; ")
        with pytest.raises(BrokersUnavailable, match=r"COORDINATOR_NOT_AVAILABLE.*`airflow eos doctor`"):
            pipeline.run("r2")


@pytest.mark.chaos
def test_offsets_of_a_run_that_the_ledger_hides_are_not_called_moved(kafka):
    """The ledger takes no marker: no error advises to reset the offsets that the run has committed."""
    pipeline = Pipeline(kafka)
    spec = pipeline.spec
    times = {"delivery_timeout": dt.timedelta(seconds=5), "transaction_timeout": dt.timedelta(seconds=36)}
    pipeline.publish(["a"])
    pipeline.run("a")
    pipeline.publish(["b"])
    with contextlib.ExitStack() as stack:

        def stop(state):
            if state is State.PROVEN:
                stack.enter_context(needing_all(kafka, spec.ledger.topic))
                wait_for_replicas(spec.deployment, spec.ledger.topic, "fail")

        with pytest.raises(NotYetVisible, match="is committed, not yet visible in ledger"):
            pipeline.run("b", on_state=stop, **times)
        checks = {check.name: check for check in examine(DoctorOptions(spec.deployment, spec.group_id))}
        group = checks[f"group {spec.group_id}"]
        assert group.status == "unknown"
        assert "committed 2, cursor 1; " in group.found
        assert "reset-offsets" not in str(group)
    assert pipeline.run("b", try_number=2, **times).records_written == 1
    checks = {check.name: check for check in examine(DoctorOptions(spec.deployment, spec.group_id))}
    assert checks[f"group {spec.group_id}"].status == "ok"


@contextlib.contextmanager
def needing_all(kafka, topic):
    """A topic that needs three in-sync replicas and has two; its leaders stay: one broker leads nothing."""
    kafka.wait_in_sync()
    change_topic(kafka.admin(), topic, {"min.insync.replicas": "3"})
    partitions = kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions.values()
    victim = min(kafka.brokers, key=lambda broker: [p.leader for p in partitions].count(broker.node_id))
    victim.kill()
    try:
        yield
    finally:
        victim.start()
        change_topic(kafka.admin(), topic, {"min.insync.replicas": "2"})
        kafka.wait_in_sync()


def test_a_partition_without_a_leader_hides_nothing_else(kafka, capsys):
    """The second partition of source and sink is offline: commands and page show the rest, and name it."""
    pipeline, staying, away = Pipeline(kafka), kafka.brokers[0], kafka.brokers[2]
    whole, names = pipeline.source, [f"{pipeline.source}-placed", f"{pipeline.sink}-placed"]
    for name in names:
        placed = NewTopic(name, 2, replica_assignment=[[staying.node_id], [away.node_id]])
        kafka.admin().create_topics([placed])[name].result()
    pipeline.source, pipeline.sink = names
    spec = pipeline.spec = pipeline.changed(source_topics=(pipeline.source,), sink_topic=pipeline.sink)
    wait_until(lambda: -1 not in leaders(spec, *names))
    for partition in (0, 1):
        pipeline.publish([f"a{partition}", f"b{partition}"], partition=partition)
    pipeline.run("r1")
    pipeline.run("r1", group_id=f"{spec.group_id}-2", pipeline="another", source_topics=(whole,))
    away.kill()
    try:
        wait_until(lambda: leaders(spec, *names).count(-1) == len(names))
        arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--ledger-topic", spec.ledger.topic]
        main(["status", *arguments, "--prefix", spec.prefix, "--output", "json"])
        cursors = json.loads(capsys.readouterr().out)["cursors"]
        assert cursors[spec.group_id]["unknown"] == f"BrokersUnavailable: {pipeline.source}-1: no leader"
        assert cursors[f"{spec.group_id}-2"]["lag"] == 0
        unseen = repair(spec.deployment).unseen
        assert {topic: error.message for topic, error in unseen.items()} == {
            pipeline.sink: f"{pipeline.sink}-1: no leader"
        }
        with RunHistory(spec.deployment) as history:
            history.refresh()
            coverage = history.coverage(history.pipelines[spec.pipeline])
            assert (coverage.unseen, coverage.unread) == ((pipeline.source,), -1)
            checks = {
                check.name: check
                for check in history.health(sources=[pipeline.source], sinks=[pipeline.sink])
            }
        assert checks[f"end of topic {pipeline.source}"].found == "partition 1 has no leader"
        assert checks[f"topic {pipeline.sink} replicas"].found.endswith("; partition 1 has no leader")
        assert checks["ledger topic replicas"].status == "ok"
        options = DoctorOptions(
            spec.deployment, group=spec.group_id, sources=[pipeline.source], sinks=[pipeline.sink]
        )
        checks = {check.name: check for check in examine(options)}
        assert checks[f"group {spec.group_id}"].found == f"{pipeline.source}-1: no leader"
        assert checks[f"topic {pipeline.source} retention"].status == "ok"
        assert main(["verify", *arguments, "--pipeline", spec.pipeline, "--output", "json"]) == FOUND
        answer = json.loads(capsys.readouterr().out)
        assert not answer["matches"]
        assert {
            (finding["partition"], finding["outcome"], finding["found"]) for finding in answer["findings"]
        } == {
            (0, "ok", 2),
            (1, "unavailable", 0),
        }
    finally:
        away.start()


def test_a_group_without_a_coordinator_hides_no_other_group(kafka, capsys):
    """Commands do not wait for it, show the other groups, and name the partition of __consumer_offsets."""
    pipeline, away, staying = Pipeline(kafka), kafka.brokers[2], kafka.brokers[0]
    spec = pipeline.spec
    pipeline.publish(["a"])
    pipeline.run("r1")
    offsets = offsets_partition_of(spec.group_id, 5)
    other = next(name for name in map(str, range(100)) if offsets_partition_of(name, 5) != offsets)
    pipeline.run("r1", group_id=other, pipeline="other")
    # With fewer in-sync replicas than this, a killed broker does not become leader again (KIP-966).
    change_topic(kafka.admin(), offsets.topic, {"min.insync.replicas": "1"})
    place(kafka, offsets, [away])
    away.kill()
    try:
        wait_until(lambda: leader(spec.kafka, offsets.topic, offsets.partition) == -1)
        arguments = ["--bootstrap-servers", kafka.bootstrap_servers, "--ledger-topic", spec.ledger.topic]
        assert main(["status", *arguments, "--prefix", spec.prefix, "--output", "json"]) == 0
        cursors = json.loads(capsys.readouterr().out)["cursors"]
        assert cursors[spec.group_id]["unknown"] == f"BrokersUnavailable: {offsets}: no leader"
        assert cursors[other]["lag"] == 0
        checks = {check.name: check for check in examine(DoctorOptions(spec.deployment, spec.group_id))}
        assert checks[f"group {spec.group_id}"].found == f"{offsets}: no leader"
    finally:
        away.start()
        place(kafka, offsets, [staying, *kafka.brokers[1:]])
        change_topic(kafka.admin(), offsets.topic, {"min.insync.replicas": "2"})


def place(kafka, partition, brokers):
    """Move a partition to these brokers, and wait until all of them have it."""
    topics = AlterPartitionReassignmentsRequest.ReassignableTopic
    nodes = [broker.node_id for broker in brokers]
    placed = topics.ReassignablePartition(partition_index=partition.partition, replicas=nodes)
    request = AlterPartitionReassignmentsRequest(
        topics=[topics(name=partition.topic, partitions=[placed])], timeout_ms=30_000, max_version=0
    )
    with BrokerConnections(kafka.client_config()) as connections:
        assert connections.run(connections.ask_any_async(request)).error_code == 0

        def is_moved():
            topic = connections.topics([partition.topic])[partition.topic]
            return topic.in_sync[partition.partition] == len(nodes)

        wait_until(is_moved)


def test_a_ledger_without_a_leader_is_named_at_once(kafka):
    """The doctor does not wait for it in each check, and checks everything else."""
    pipeline, away = Pipeline(kafka), kafka.brokers[2]
    spec = pipeline.spec
    placed = NewTopic(
        spec.ledger.topic, 1, replica_assignment=[[away.node_id]], config={"cleanup.policy": "compact"}
    )
    kafka.admin().create_topics([placed])[spec.ledger.topic].result()
    pipeline.publish(["a"])
    pipeline.run("r1")
    away.kill()
    try:
        wait_until(lambda: leaders(spec, spec.ledger.topic) == [-1])
        checks = unread_ledger(pipeline)
    finally:
        away.start()
    assert checks["ledger topic replicas"].found.endswith("; partition 0 has no leader")
    assert checks["ledger"].found == f"the ledger cannot be read: {spec.ledger.topic}-0: no leader"


def test_a_ledger_whose_new_leader_waits_for_replicas_is_named_soon(kafka):
    """Such a leader does not answer requests for the log end: each check would wait for a minute."""
    pipeline, away, staying = Pipeline(kafka), kafka.brokers[2], kafka.brokers[0]
    spec = pipeline.spec
    placed = NewTopic(
        spec.ledger.topic,
        1,
        replica_assignment=[[away.node_id, staying.node_id]],
        config={"cleanup.policy": "compact", "min.insync.replicas": "2"},
    )
    kafka.admin().create_topics([placed])[spec.ledger.topic].result()
    pipeline.publish(["a"])
    pipeline.run("r1")
    with written_to(kafka, spec.ledger.topic):
        away.kill()
    try:
        wait_until(lambda: leaders(spec, spec.ledger.topic) == [staying.node_id])
        checks = unread_ledger(pipeline)
    finally:
        away.start()
    assert checks["ledger topic replicas"].found.endswith("; partition 0 has 1 in sync")
    assert "no answer within 10 s; last: " in checks["ledger"].found
    assert "OFFSET_NOT_AVAILABLE" in checks["ledger"].found


@contextlib.contextmanager
def written_to(kafka, topic):
    """Write continuously: a follower has records that it does not know to be on all replicas."""
    acknowledged, ended = threading.Event(), threading.Event()

    def write():
        while not ended.is_set():
            with contextlib.suppress(BufferError):
                producer.produce(topic, b"value", b"key", 0, on_delivery=lambda *_: acknowledged.set())
            producer.poll(0)

    producer = Producer(kafka.client_config())
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert acknowledged.wait(30)
        yield
    finally:
        ended.set()
        writer.join()
        producer.purge()


def unread_ledger(pipeline):
    """Examine everything; assert that only the checks that need the ledger were skipped."""
    spec = pipeline.spec
    options = DoctorOptions(spec.deployment, spec.group_id, [pipeline.source], [pipeline.sink])
    checks = {check.name: check for check in examine(options)}
    unread = {name for name, check in checks.items() if "the ledger cannot be read: " in check.found}
    assert unread == {
        "ledger",
        "ledger records",
        "ledger writers",
        "end of the ledger",
        "hanging transactions",
        f"group {spec.group_id}",
    }
    assert checks[f"topic {pipeline.source} retention"].status == "ok"
    return checks


def leaders(spec, *topics):
    """Return the node ids of the leaders of these topics' partitions; -1 if there is none."""
    with BrokerConnections(spec.kafka) as connections:
        described = connections.topics(topics).values()
        return [leader for topic in described for leader in topic.leaders.values()]


def wait_for_replicas(deployment, topic, status):
    """Wait until the doctor gives a topic's replicas this status; return its text."""

    def look():
        checks = {check.name: check for check in examine(DoctorOptions(deployment, sinks=[topic]))}
        check = checks.get(f"topic {topic} replicas")
        return check.found if check is not None and check.status == status else None

    # Each poll runs all checks of the doctor: without a pause they would take a whole core.
    return eventually(look, bool, pause=1.0)
