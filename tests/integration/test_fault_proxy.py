"""The proxy applies faults to exactly the given requests, and clients stay behind it."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_eos.broker.transactions import KafkaTransactions
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.run.states import State
from airflow_eos_testing import read_topic
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.faults import KafkaProxy
from tests.support.local_runs import Pipeline
from tests.support.patience import wait_until


@pytest.fixture
def proxy(embedded_kafka):
    with KafkaProxy(embedded_kafka.bootstrap_servers) as running:
        yield running


def produce(proxy, topic, count=20, **config):
    # One batch, sent by the flush: a second one could overtake a first one that is refused.
    settings = {"log_level": 2, "linger.ms": 60_000, **config}
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, **settings})
    for number in range(count):
        producer.produce(topic, value=f"{number}", partition=0)
    assert producer.flush(30) == 0


def values(kafka, topic):
    return [int(record.value) for record in read_topic(kafka.client_config(), topic)]


def test_clients_never_learn_the_brokers_own_addresses(proxy, embedded_kafka):
    """Metadata names the proxy: every request of the client goes through it."""
    metadata = AdminClient({"bootstrap.servers": proxy.bootstrap_servers}).list_topics(timeout=30)
    ports = {f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}
    assert ports == set(proxy.bootstrap_servers.split(","))
    assert not ports & set(embedded_kafka.bootstrap_servers.split(","))


def test_a_lost_response_was_carried_out(proxy, embedded_kafka, kafka_topic):
    """The broker has appended the batch; an idempotent client retries it; the log has each record once."""
    topic = kafka_topic("lost")
    lost = proxy.lose_response("Produce")
    produce(proxy, topic, **{"enable.idempotence": True})
    assert lost.hits == 1
    assert proxy.seen("Produce") >= 2
    assert values(embedded_kafka, topic) == list(range(20))


def test_without_idempotence_a_lost_response_duplicates(proxy, embedded_kafka, kafka_topic):
    """The answer is really lost: with the same fault, the log has records twice."""
    topic = kafka_topic("lost")
    proxy.lose_response("Produce")
    produce(proxy, topic)
    assert len(values(embedded_kafka, topic)) > 20


def test_a_cut_request_never_arrived(proxy, embedded_kafka, kafka_topic):
    """The connection closes before the broker gets the request: no record is duplicated."""
    topic = kafka_topic("cut")
    cut = proxy.cut("Produce", times=2)
    produce(proxy, topic)
    assert cut.hits == 2
    assert values(embedded_kafka, topic) == list(range(20))


def test_a_held_request_arrives_when_it_is_released(proxy, embedded_kafka, kafka_topic):
    """The broker does not get it before."""
    topic = kafka_topic("held")
    held = proxy.hold("Produce", containing=topic)
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
    producer.produce(topic, value="0", partition=0)
    producer.poll(0)
    held.wait(30)
    assert values(embedded_kafka, topic) == []
    held.release()
    assert producer.flush(30) == 0
    assert values(embedded_kafka, topic) == [0]


def test_a_delayed_request_arrives_later_though_its_client_is_gone(proxy, embedded_kafka, kafka_topic):
    """As in a network: a request may arrive after its sender has died."""
    topic = kafka_topic("late")
    delayed = proxy.hold("Produce", containing=topic)
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "log_level": 2})
    producer.produce(topic, value="0", partition=0)
    producer.poll(0)
    delayed.wait(30)
    producer.purge()
    del producer
    assert values(embedded_kafka, topic) == []
    delayed.release()
    assert wait_until(lambda: values(embedded_kafka, topic)) == [0]


def test_a_delay_ends_by_itself(proxy, embedded_kafka, kafka_topic):
    """The request is forwarded when its time is over, not before."""
    topic = kafka_topic("delayed")
    delayed = proxy.delay("Produce", 0.5, containing=topic)
    began = time.monotonic()
    produce(proxy, topic, 1)
    assert time.monotonic() - began >= 0.5
    assert delayed.hits == 1
    assert values(embedded_kafka, topic) == [0]


def test_a_refused_request_is_answered_by_the_proxy(proxy, embedded_kafka, kafka_topic):
    """NOT_ENOUGH_REPLICAS, which clients retry; the broker sees the second request only."""
    topic = kafka_topic("refused")
    refused = proxy.refuse("Produce", error_code=19)
    produce(proxy, topic)
    assert refused.hits == 1
    assert values(embedded_kafka, topic) == list(range(20))


def test_answers_keep_the_order_of_their_requests(proxy, embedded_kafka, kafka_topic):
    """A refusal waits for its turn behind a held answer: until then the client does not retry."""
    topic = kafka_topic("turns")
    held = proxy.hold("Produce", response=True)
    refused = proxy.refuse("Produce", error_code=19)
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0, "retry.backoff.ms": 1})
    for number, met in enumerate((held, refused)):
        producer.produce(topic, value=f"{number}", partition=0)
        met.wait()
    time.sleep(0.5)  # an earlier refusal would have been retried by now
    assert values(embedded_kafka, topic) == [0]
    held.release()
    assert producer.flush(30) == 0
    assert values(embedded_kafka, topic) == [0, 1]


def test_a_connection_that_fell_silent_answers_nothing_more(proxy, kafka_topic):
    """Neither the broker's answers nor the proxy's own arrive."""
    topic = kafka_topic("silent")
    silenced = proxy.lose_response("Produce", silent=True)
    refused = proxy.refuse("Produce", error_code=10)  # MESSAGE_TOO_LARGE, which clients do not retry
    reports = []
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0, "log_level": 2})
    for number, met in enumerate((silenced, refused)):
        producer.produce(
            topic, value=f"{number}", partition=0, on_delivery=lambda *report: reports.append(report)
        )
        met.wait()
    producer.poll(1)
    assert reports == []
    producer.purge()


def test_only_requests_that_hold_the_text_meet_the_fault(proxy, embedded_kafka, kafka_topic):
    """A fault for one topic does not affect the other, and stays until it is cancelled."""
    topic, other = kafka_topic("one"), kafka_topic("other")
    fault = proxy.cut("Produce", times=None, containing=topic)
    produce(proxy, other)
    assert fault.hits == 0
    with pytest.raises(EmbeddedKafkaError, match="0 of 1 Produce"):
        fault.wait(0.1)
    fault.cancel()
    produce(proxy, topic)
    assert fault.hits == 0


def test_what_the_proxy_cannot_do_is_refused(proxy):
    """A misspelt API would never match a request."""
    with pytest.raises(ConfigurationError, match="'Prodcue'"):
        proxy.cut("Prodcue")
    with pytest.raises(ConfigurationError, match="Produce requests only"):
        proxy.refuse("EndTxn", 1)


@pytest.mark.parametrize("silent", [False, True], ids=["cut", "silent"])
def test_a_run_behind_the_proxy_commits_though_the_commit_is_not_answered(
    proxy, embedded_kafka, monkeypatch, silent
):
    """EndTxn was carried out, its answer is lost: the run finds that out, and nothing is duplicated."""
    if silent:
        defaults = KafkaTransactions.__init__.__kwdefaults__
        monkeypatch.setitem(defaults, "commit_timeout", dt.timedelta(seconds=4))
    pipeline = Pipeline(embedded_kafka)
    pipeline.publish([f"v{n}" for n in range(20)])
    lost = proxy.lose_response("EndTxn", silent=silent, containing=pipeline.spec.group_id)
    states = []
    record = pipeline.run(kafka=proxy.client_config(pipeline.spec.kafka), on_state=states.append)
    assert lost.hits == 1
    assert record.records_written == 20
    assert pipeline.output() == sorted(f"v{n}" for n in range(20))
    assert (State.UNKNOWN in states) == silent
