"""Connections leave no socket open, whatever the broker at the other end does."""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError
from kafka.protocol.metadata import MetadataRequest

from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.broker.shared_connections import Link
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError, EnvironmentMismatch
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.operators.retriable import is_final
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline
from tests.support.wire_requests import transaction


def open_sockets():
    """Return the names of the sockets of this process."""
    targets = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.add(str(descriptor.readlink()))
    return {target for target in targets if target.startswith("socket:")}


def test_closing_gives_up_what_a_hanging_broker_does_not_read(embedded_kafka):
    """More is queued than the socket buffers hold, and the broker does not read: close() still closes.

    Only the sockets of these connections count: a client of an earlier test may close its own meanwhile.
    """
    topic = embedded_kafka.create_topic("hangs")
    before = open_sockets()
    with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
        (leader,) = set(connections.topics([topic])[topic].leaders.values())
        opened = open_sockets() - before
        large = [MetadataRequest.MetadataRequestTopic(name="x" * 200 + str(n)) for n in range(50_000)]
        embedded_kafka.brokers[0].pause()
        try:
            connections.send(MetadataRequest(topics=large, max_version=1), leader)
            connections.pump(20)
            assert opened & open_sockets()
            connections.close()
            assert not opened & open_sockets()
        finally:
            embedded_kafka.brokers[0].resume()


@pytest.mark.timeout(60)
def test_closing_waits_for_no_use_that_a_time_out_has_interrupted(embedded_kafka):
    """A time-out between taking the lock and the block after it once made the task hang silently for ever."""
    closed = threading.Event()

    def interrupted():
        link = Link(embedded_kafka.client_config())
        use = link.connections()
        use.__enter__()
        link.close()
        closed.set()
        del use

    threading.Thread(target=interrupted, daemon=True).start()
    assert closed.wait(20)


def test_a_request_that_cannot_be_encoded_fails(embedded_kafka):
    """Also if its connection is still being opened: nothing waits for an answer to a request never sent."""
    with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
        for _ in range(2):
            with pytest.raises(UnicodeEncodeError):
                connections.coordinator("transaction", "\udcff")
        assert connections.coordinator("transaction", "work") in connections.brokers()


def test_a_server_that_is_not_a_broker_is_named():
    """The address is that of another service, whose answer looks like a frame of a gigabyte."""

    class Refusing(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1000)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Refusing) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(ConfigurationError, match=f"{address}: .*not a Kafka broker"):
            BrokerConnections({"bootstrap.servers": address})
        server.shutdown()
        serving.join()


@pytest.mark.timeout(120)
def test_a_broker_that_hangs_before_tls_is_given_up():
    """The kernel accepts the connection, but the TLS handshake hangs: for a new client and an active one."""
    with EmbeddedKafka(security="SSL") as kafka:
        topic = kafka.create_topic("hangs")
        config = ClientConfig.of({**kafka.client_config(), "socket.connection.setup.timeout.ms": 2000})
        with BrokerConnections(config) as connections:
            (leader,) = set(connections.topics([topic])[topic].leaders.values())
            connections.hang_up(leader)
            kafka.brokers[0].pause()
            try:
                began = time.monotonic()
                with pytest.raises(KafkaConnectionError, match=r"TLS handshake .* failed"):
                    connections.wait(connections.send(MetadataRequest(topics=[], max_version=1), leader))
                with pytest.raises(BrokersUnavailable, match=r"no broker answered .* TLS handshake"):
                    BrokerConnections(config, bootstrap_timeout=6.0)
                assert time.monotonic() - began < 30
            finally:
                kafka.brokers[0].resume()


def test_a_bootstrap_server_that_drops_packets_costs_a_second(embedded_kafka, monkeypatch):
    """Another server is tried soon, even if chance chooses the same one twice."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as dead:
        waiting = [socket.socket() for _ in range(4)]  # the kernel drops what comes after them
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(dead.getsockname())
        servers = f"127.0.0.1:{dead.getsockname()[1]},{embedded_kafka.bootstrap_servers}"
        chosen = itertools.chain([0, 0], itertools.repeat(1))
        monkeypatch.setattr("random.choice", lambda nodes: sorted(nodes, key=port_order)[next(chosen)])
        began = time.monotonic()

        def port_order(node):
            return node.port != dead.getsockname()[1]

        with BrokerConnections({"bootstrap.servers": servers}) as connections:
            assert connections.brokers()
        assert time.monotonic() - began < 4
        for each in waiting:
            each.close()


def test_a_bootstrap_server_is_asked_where_two_brokers_are_not_at_their_addresses(
    embedded_kafka, unused_port
):
    """All brokers may have moved: if no address refuses the connection, each would cost ten seconds."""
    with BrokerConnections(embedded_kafka.client_config()) as connections:
        cluster = connections._manager.cluster
        (broker,) = cluster._brokers.values()
        cluster._brokers = {n: type(broker)(n, "127.0.0.1", unused_port, None) for n in range(100, 120)}
        assert connections.brokers() == [broker.node_id]
        assert len(connections._suspects) == 2


def test_bootstrap_servers_of_two_clusters_are_named(embedded_kafka):
    """The driver's two clients have connected to different clusters: no fence is attempted."""
    pipeline = Pipeline(embedded_kafka)
    with ControlPlane(pipeline.spec) as control:
        control.link.ask(BrokerConnections.brokers)
        control.link.cluster_id = "another"
        with pytest.raises(ConfigurationError, match=r"names brokers of two clusters, .*another"):
            control.transactions.fence("two")


def test_a_cluster_that_answers_in_place_of_the_first_is_refused(embedded_kafka, kafka_topic):
    """`bootstrap.servers` names two clusters, and the one with which this client began is silent now."""
    with BrokerConnections(embedded_kafka.client_config()) as connections:
        connections.cluster_id = "first"
        with pytest.raises(EnvironmentMismatch, match="has begun with cluster first") as refusal:
            connections.topics([kafka_topic("src")])
    assert not is_final(refusal.value)


@pytest.mark.chaos
def test_a_read_does_not_go_on_in_another_cluster():
    """It has a topic of this name, too, and brokers with the same ids."""
    source = TopicPartition("src", 0)
    with EmbeddedKafka() as first, EmbeddedKafka() as another:
        clusters = {}
        for kafka in (first, another):
            kafka.create_topic(source.topic)
            with BrokerConnections(kafka.client_config()) as connections:
                clusters[connections.cluster_id] = kafka
                transaction(connections, source, ["a", "b", "c"], records_per_batch=1)
        both = f"{first.bootstrap_servers},{another.bootstrap_servers}"
        with BrokerConnections({"bootstrap.servers": both, "socket.timeout.ms": "1000"}) as connections:
            answers = fetch_answers(connections, source, 0, 3, max_bytes=1)
            assert next(answers).next_position == 1
            clusters[connections.cluster_id].brokers[0].pause()
            with pytest.raises(EnvironmentMismatch):
                list(answers)


def test_any_name_that_brokers_take_logs_in_by_scram():
    """In both clients: SCRAM separates the parts of its messages by commas and equals signs."""
    with EmbeddedKafka(security="SASL_PLAINTEXT") as kafka:
        config = ClientConfig.of(kafka.user("team=a"))
        with BrokerConnections(config) as connections:
            assert connections.brokers()
        producer = TransactionalProducer(config, "scram", transaction_timeout=60.0, delivery_timeout=30.0)
        try:
            assert producer.initialise(30.0, topic="any").producer_epoch == 0
        finally:
            producer.close()
