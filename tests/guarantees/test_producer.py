"""P: the producer. Retries, lost acknowledgements, order, leaders that move, sessions that end."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_eos.exceptions import RunFailed
from airflow_eos.run.states import State
from airflow_eos.wire.backoff import FIRST_PAUSE, LONGEST_PAUSE
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.error_codes import PRODUCE
from airflow_eos_testing import count_records, read_topic
from airflow_eos_testing.faults import KafkaProxy
from tests.guarantees import without_transactions
from tests.guarantees.data_planes import ManyBatchesPlane
from tests.guarantees.driver import in_a_process
from tests.guarantees.experiment import Experiment, described, judged, values
from tests.support.local_runs import LocalDataPlane
from tests.support.patience import eventually
from tests.support.topic_settings import change_topic

NOT_ENOUGH_REPLICAS = 19
TWO_DOWN_SECONDS = 4


def refusals(monkeypatch):
    """Collect the error codes that Produce is answered with."""
    from airflow_eos.wire import produce

    codes, original = [], produce.reaction

    def watched(table, code):
        if table is PRODUCE:
            codes.append(code)
        return original(table, code)

    monkeypatch.setattr(produce, "reaction", watched)
    return codes


def need_replicas(experiment, count):
    """Set min.insync.replicas of the sink."""
    # A new client: librdkafka asks the last controller it knew, and waits for it even if it is dead.
    running = [broker.address for broker in experiment.kafka.brokers if broker.is_alive]
    admin = AdminClient({**experiment.kafka.client_config(), "bootstrap.servers": ",".join(running)})
    change_topic(admin, experiment.sink, {"min.insync.replicas": str(count)})


# -- P1: too few replicas --------------------------------------------------------------------------------


def test_too_few_replicas_are_waited_for(replicated, monkeypatch):
    """P1: while a required replica is down, NOT_ENOUGH_REPLICAS is retried until the replica is back."""
    codes = refusals(monkeypatch)
    replicated.feed(20)
    need_replicas(replicated, 3)
    broker = replicated.kafka.brokers[2]

    def bring_back():
        while codes.count(NOT_ENOUGH_REPLICAS) < 3:
            time.sleep(0.02)
        broker.start()

    def stop(state):
        if state is State.OPEN:
            broker.stop()
            threading.Thread(target=bring_back, daemon=True).start()

    record = replicated.run(on_state=stop)
    assert codes.count(NOT_ENOUGH_REPLICAS) >= 3
    assert "ABORTED" not in [state for state, _ in record.trace]
    replicated.assert_exact()


def test_replicas_that_stay_away_end_the_run_cleanly(replicated):
    """P1: replicas stay away beyond the delivery time-out: one clear error, no visible record, no offset."""
    replicated.feed(20)
    need_replicas(replicated, 3)
    replicated.kafka.brokers[2].stop()
    short = {"delivery_timeout": dt.timedelta(seconds=3), "max_send_attempts": 1}
    with pytest.raises(RunFailed, match=r"within 3 s .*NotEnoughReplicas"):
        replicated.run(**short)
    assert replicated.output() == []
    assert replicated.committed() == [-1, -1]
    need_replicas(replicated, 2)
    replicated.run(try_number=2)
    replicated.assert_exact()


def test_without_acks_from_all_replicas_an_acknowledged_record_is_lost(replicated):
    """P1, contrast: acks=1 does not wait for replicas: if the leader dies, an acknowledged record is lost."""
    kafka = replicated.kafka
    topic = kafka.create_topic(
        f"{replicated.sink}-one",
        config={"min.insync.replicas": "1"},
    )
    leader = kafka.admin().list_topics(topic).topics[topic].partitions[0].leader
    followers = [broker for broker in kafka.brokers if broker.node_id != leader]
    producer = Producer({**kafka.client_config(), "acks": "1", "enable.idempotence": False, "linger.ms": 0})
    producer.list_topics(topic, timeout=20)  # learn the leader first: paused brokers do not tell
    for broker in followers:
        broker.pause()
    # A follower's pending fetch gets the next records when it resumes: these, not the acknowledged one.
    for _ in range(10):
        producer.produce(topic, value="perhaps fetched")
        assert producer.flush(20) == 0
        time.sleep(0.1)
    producer.produce(topic, value="acknowledged")
    assert producer.flush(20) == 0  # the leader has acknowledged it
    kafka.brokers[leader - 1].kill()
    for broker in followers:
        broker.resume()
    wait_for_another_leader(kafka, topic, leader)
    # Once this record is replicated, all earlier ones that a replica has are visible.
    survivor = Producer({**kafka.client_config(), "acks": "all"})
    survivor.produce(topic, value="written to the new leader")
    assert survivor.flush(60) == 0
    texts = values(kafka, topic)
    assert texts[-1] == "written to the new leader"
    assert "acknowledged" not in texts


def wait_for_another_leader(kafka, topic, old):
    deadline = time.monotonic() + 60
    while True:
        part = kafka.admin().list_topics(topic, timeout=20).topics[topic].partitions[0]
        if part.leader not in (-1, old):
            return
        assert time.monotonic() < deadline, "no new leader"
        time.sleep(0.1)


@pytest.mark.chaos
@pytest.mark.parametrize("state", [State.OPEN, State.WRITTEN], ids=lambda s: s.value)
def test_two_of_three_brokers_down_is_waited_for(replicated, state):
    """P1: two of three brokers are down: everything waits until one is back, and the run commits."""
    replicated.feed(40)
    _, second, third = replicated.kafka.brokers
    down_at = []

    def stop(entered):
        if entered is state and not down_at:
            for broker in (second, third):
                broker.kill()
            down_at.append(time.monotonic())
            timer = threading.Timer(TWO_DOWN_SECONDS, second.start)
            timer.daemon = True
            timer.start()

    replicated.run(on_state=stop)
    assert time.monotonic() - down_at[0] >= TWO_DOWN_SECONDS
    assert (second.is_alive, third.is_alive) == (True, False)
    replicated.assert_exact()


def test_the_time_outs_are_kafkas_and_the_first_pause_is_shorter(experiment):
    """P1: request.timeout.ms 30000, delivery.timeout.ms 120000; pauses from 20 ms (Java: 100) to 1 s."""
    with BrokerConnections(ClientConfig.of(experiment.kafka.client_config())) as connections:
        assert connections.request_timeout == 30.0
    assert experiment.spec.delivery_timeout.total_seconds() == 120.0
    # Where Java waits retry.backoff.ms, 100 ms at first, and 1 s at most.
    assert (FIRST_PAUSE, LONGEST_PAUSE) == (0.02, 1.0)


# -- P2: lost acknowledgements ---------------------------------------------------------------------------


def lose_when_appended(experiment, held, before=lambda: None):
    """Start a thread that notes the number of records in the log, and loses a held answer; return both.

    :param before: called before the answer is lost.
    """
    appended = []

    def lose():
        held.wait()
        config = experiment.kafka.client_config()
        appended.append(count_records(config, experiment.sink, "read_uncommitted"))
        before()
        held.release(drop=True)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    return thread, appended


def test_a_batch_whose_acknowledgement_was_lost_is_in_the_log_once(any_kafka):
    """P2: a batch was appended but its answer lost: the broker recognises the sequence of the retry."""
    experiment = Experiment(any_kafka)
    experiment.feed(60)
    with KafkaProxy(any_kafka.bootstrap_servers) as proxy:
        lost = proxy.hold("Produce", times=2, response=True, containing=experiment.sink)
        again = proxy.delay("Produce", 0.0, None, containing=experiment.sink)
        thread, appended = lose_when_appended(experiment, lost)
        sent_again = {}

        def look(state):
            sent_again[state] = again.hits

        record = experiment.run(kafka=proxy.client_config(any_kafka.client_config()), on_state=look)
        thread.join(60)
        assert lost.hits == 2
    # A writer that takes a lost answer for success leaves the same log. A later ledger record names the sink.
    assert sent_again[State.WRITTEN] > 0
    assert appended[0] > 0
    assert "ABORTED" not in [state for state, _ in record.trace]
    # In the log itself, not only for readers of committed data.
    assert judged(experiment, "read_uncommitted") == ([], [])
    experiment.assert_exact()


def test_without_idempotence_a_lost_acknowledgement_is_a_duplicate(any_kafka):
    """P2, contrast: the same proxy and a plain producer with retries: the batch is in the log twice."""
    experiment = Experiment(any_kafka, partitions=1)
    experiment.feed(30)
    with KafkaProxy(any_kafka.bootstrap_servers) as proxy:
        proxy.lose_response("Produce", containing=experiment.sink)
        config = proxy.client_config(any_kafka.client_config())
        group = experiment.spec.group_id
        settings = {"enable.idempotence": False, "acks": "all", "retries": 10}
        arguments = (config, experiment.source, experiment.sink, group, "output first", False, settings)
        assert in_a_process(without_transactions.copy, *arguments) == 0
    lost, duplicated = judged(experiment)
    assert lost == []
    assert duplicated != []


# -- P3: order with several batches in flight ------------------------------------------------------------


class OneByOne(ManyBatchesPlane):
    """Batches of some records, so that five are in flight."""


def in_log_order(experiment):
    records = read_topic(experiment.kafka.client_config(), experiment.sink)
    return [r.value.decode() for r in records]


@pytest.mark.parametrize("times", [1, 7])
def test_refused_batches_do_not_change_the_order(embedded_kafka, times):
    """P3: first batches are refused while later ones are in flight: the log is in the order of sending."""
    experiment = Experiment(embedded_kafka, partitions=1)
    experiment.feed(1000)
    with KafkaProxy(embedded_kafka.bootstrap_servers) as proxy:
        # The first batch goes alone; the second is the first of five in flight.
        first = proxy.delay("Produce", 0.0, containing=experiment.sink)
        refused = proxy.refuse("Produce", NOT_ENOUGH_REPLICAS, times, containing=experiment.sink)
        config = proxy.client_config(embedded_kafka.client_config())
        record = experiment.run(kafka=config, data=ManyBatchesPlane)
        assert (first.hits, refused.hits) == (1, times)
    assert sum(r.batches for r in record.receipts) > 20
    assert in_log_order(experiment) == experiment.sent


def test_without_idempotence_the_second_batch_overtakes_the_first(embedded_kafka):
    """P3, contrast: A is refused, B is written, A is sent again: the log has B before A."""
    topic = embedded_kafka.create_topic(f"order-{time.monotonic_ns()}")
    config = embedded_kafka.client_config()
    with KafkaProxy(embedded_kafka.bootstrap_servers) as proxy:
        # Answers keep their order: a refusal waits behind the held one until B is in the log. A client that
        # knew of the refusal would not send B first.
        held = proxy.hold("Produce", response=True, containing=topic)
        refused = proxy.refuse("Produce", NOT_ENOUGH_REPLICAS, containing=topic)
        settings = {"enable.idempotence": False, "max.in.flight": 5, "retries": 10, "linger.ms": 0}
        producer = Producer({**proxy.client_config(config), **settings})
        producer.produce(topic, value="first")
        held.wait()
        producer.produce(topic, value="A")
        refused.wait()
        producer.produce(topic, value="B")
        eventually(lambda: values(embedded_kafka, topic), ["first", "B"].__eq__)
        held.release()
        assert producer.flush(30) == 0
    assert values(embedded_kafka, topic) == ["first", "B", "A"]


# -- P4: leaders that die --------------------------------------------------------------------------------


def test_a_leader_that_dies_in_the_middle_of_a_send_costs_only_time(replicated):
    """P4: SIGKILL of a sink partition's leader while batches are sent: the new leader knows the sequences."""
    replicated.feed(600)
    admin = replicated.kafka.admin()
    leader = admin.list_topics(replicated.sink).topics[replicated.sink].partitions[0].leader
    victim = replicated.kafka.brokers[leader - 1]

    class DiesOnTheWay(ManyBatchesPlane):
        def send(self, sealed, identity, timeout):
            for tp, batches in sealed.batches.items():
                sealed.batches[tp] = self.slowly(batches)
            return super().send(sealed, identity, timeout)

        def slowly(self, batches):
            for number, batch in enumerate(batches):
                if number == len(batches) // 2 and victim.is_alive:
                    victim.kill()
                yield batch

    record = replicated.run(data=DiesOnTheWay)
    assert not victim.is_alive
    assert "ABORTED" not in [state for state, _ in record.trace]
    assert judged(replicated, "read_uncommitted") == ([], [])
    replicated.assert_exact()


def behind_a_dead_leader(experiment, proxy):
    """The next batch is appended and replicated; its answer is lost, because the leader dies.

    Returns the fault, and thread and list of :func:`lose_when_appended`.
    """
    admin = experiment.kafka.admin()
    leader = admin.list_topics(experiment.sink).topics[experiment.sink].partitions[0].leader
    fault = proxy.hold("Produce", response=True, containing=experiment.sink)
    return fault, *lose_when_appended(experiment, fault, experiment.kafka.brokers[leader - 1].kill)


def test_the_new_leader_recognises_a_batch_the_dead_one_wrote(replicated_one):
    """P4: all replicas have the batch when the leader dies before its answer: the retry is recognised."""
    replicated_one.feed(100)
    with KafkaProxy(replicated_one.kafka.bootstrap_servers) as proxy:
        fault, thread, appended = behind_a_dead_leader(replicated_one, proxy)
        config = proxy.client_config(replicated_one.kafka.client_config())
        record = replicated_one.run(kafka=config, data=ManyBatchesPlane)
        thread.join(60)
        assert fault.hits == 1
    assert appended[0] > 0
    assert "ABORTED" not in [state for state, _ in record.trace]
    assert judged(replicated_one, "read_uncommitted") == ([], [])
    replicated_one.assert_exact()


def test_without_idempotence_the_new_leader_takes_the_batch_again(replicated_one):
    """P4, contrast: the same death and a plain producer with retries: the batch is in the log twice."""
    replicated_one.feed(100)
    with KafkaProxy(replicated_one.kafka.bootstrap_servers) as proxy:
        fault, thread, appended = behind_a_dead_leader(replicated_one, proxy)
        settings = {"enable.idempotence": False, "acks": "all", "retries": 1000, "log_level": 0}
        producer = Producer({**proxy.client_config(replicated_one.kafka.client_config()), **settings})
        for value in replicated_one.sent:
            producer.produce(replicated_one.sink, key=value, value=value)
        assert producer.flush(60) == 0
        thread.join(60)
        assert fault.hits == 1
    assert appended[0] > 0
    lost, duplicated = judged(replicated_one)
    assert lost == []
    assert duplicated != []


# -- P5: sessions that end -------------------------------------------------------------------------------


def test_idempotence_alone_does_not_outlive_the_process(experiment):
    """P5, contrast: an idempotent producer dies after its send; the next one has another id: duplicates."""
    experiment.feed(30)
    config, group = experiment.kafka.client_config(), experiment.spec.group_id
    arguments = (config, experiment.source, experiment.sink, group, "output first")
    assert in_a_process(without_transactions.copy, *arguments, True, {"enable.idempotence": True}) == -9
    assert in_a_process(without_transactions.copy, *arguments, False, {"enable.idempotence": True}) == 0
    assert judged(experiment) == ([], sorted(experiment.sent))


def test_the_run_protocol_outlives_every_process(experiment):
    """P5: three drivers in a row die after their send; readers see the fourth's output only."""
    experiment.feed(30)
    owners = []
    for number in (1, 2, 3):
        dead = experiment.driver("r1", try_number=number, stop_at=State.WRITTEN).wait_for(State.WRITTEN)
        owners.append(described(experiment))
        dead.kill()
    record = experiment.run("r1", try_number=4, data=LocalDataPlane)
    # All share one producer id, which idempotence alone does not give, and each has its own epoch.
    assert {owner.producer_id for owner in owners} == {record.producer.producer_id}
    epochs = [owner.producer_epoch for owner in owners] + [record.producer.producer_epoch]
    assert epochs == sorted(set(epochs))
    assert len(experiment.output("read_uncommitted")) == 4 * 30
    experiment.assert_exact()
