"""Settings of the driver's own clients."""

from __future__ import annotations

import re
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from airflow_eos.broker.librdkafka import QuietLog, Refusals, base_settings, explained
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError
from airflow_eos.wire import security
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.ignored_settings import BULK_PRODUCING
from tests.support.patience import wait_until


def test_call_backs_of_the_connection_are_not_taken_over():
    """They are for clients that the connection's author creates; other settings are kept."""
    settings = base_settings(
        ClientConfig.of(
            {
                "bootstrap.servers": "a:1",
                "error_cb": print,
                "stats_cb": print,
                "statistics.interval.ms": 10,
                "group.id": "theirs",
                "sasl.username": "me",
            }
        )
    )
    assert settings == {
        "bootstrap.servers": "a:1",
        "client.id": "airflow-eos",
        "reconnect.backoff.max.ms": 1000,
        "reconnect.backoff.ms": 20,
        "sasl.username": "me",
    }


@pytest.mark.parametrize(
    ("given", "shortest", "longest"),
    [
        ({}, 20, 1000),
        ({"reconnect.backoff.max.ms": "300"}, 20, "300"),
        ({"reconnect.backoff.max.ms": 10}, 10, 10),
        ({"reconnect.backoff.ms": 4000}, 4000, None),
        ({"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 70}, 50, 70),
    ],
)
def test_a_lost_broker_is_tried_again_within_a_second(given, shortest, longest):
    """librdkafka's own limit of 10 s is too long; the connection's settings take precedence."""
    settings = base_settings(ClientConfig.of({"bootstrap.servers": "127.0.0.1:1", **given}))
    assert settings["reconnect.backoff.ms"] == shortest
    assert settings.get("reconnect.backoff.max.ms") == longest
    AdminClient(settings, logger=QuietLog())


def make_producer(settings, **timeouts):
    """Make the driver's client with these settings of a connection."""
    config = ClientConfig.of({"bootstrap.servers": "127.0.0.1:1", **settings})
    seconds = {"transaction_timeout": 60.0, "delivery_timeout": 30.0, **timeouts}
    TransactionalProducer(config, "eos.g", **seconds).close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"reconnect.backoff.ms": 5000, "reconnect.backoff.max.ms": 100}, "reconnect.backoff.max.ms"),
        ({"reconnect.backoff.max.ms": "long"}, "reconnect.backoff.max.ms"),
        ({"socket.timeout.ms": 5}, "socket.timeout.ms"),
        ({"debug": "foo"}, "debug"),
        ({"no.such.setting": 1}, "no.such.setting"),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named(settings, named):
    """The error calls it a mistake in the connection."""
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        make_producer(settings)


@pytest.mark.parametrize("settings", [{"log_level": 100}, {"debug": "foo"}])
def test_a_refused_setting_is_to_be_corrected(settings):
    """The error names the next step."""
    with pytest.raises(ConfigurationError, match="correct the client setting"):
        make_producer(settings)


@pytest.mark.parametrize("value", [0, 1, "zip"])
@pytest.mark.parametrize("key", sorted(BULK_PRODUCING))
def test_settings_of_bulk_producing_reach_no_client(key, value):
    """Neither their values nor their limits: with reports of errors only, no record would be acknowledged."""
    make_producer({key: value})


def test_requests_may_take_as_long_as_a_transaction():
    """librdkafka refuses a longer time-out; the wire layer keeps it."""
    make_producer({"socket.timeout.ms": "60000"}, transaction_timeout=45.0)


@pytest.mark.parametrize(("given", "used"), [({}, 12_000), ({"socket.timeout.ms": "45000"}, 45_000)])
def test_a_coordinator_that_is_frozen_is_given_up(monkeypatch, given, used):
    """Long before a record's delivery time-out, before which librdkafka would not try another one."""
    settings = {}
    monkeypatch.setattr(
        "airflow_eos.broker.producer.Producer",
        lambda own, **named: settings.update(own) or Producer(own, **named),
    )
    make_producer(given)
    assert settings["socket.timeout.ms"] == used


def test_only_refusals_are_kept():
    """A lost connection may come back; refused credentials stay refused."""
    refusals = Refusals()
    refusals.take(KafkaError(KafkaError._TRANSPORT))
    assert refusals.last is None
    refusals.take(KafkaError(KafkaError._AUTHENTICATION))
    assert refusals.last.code() == KafkaError._AUTHENTICATION


@pytest.mark.parametrize("lost", ["_TRANSPORT", "_TIMED_OUT", "_DESTROY", "_DESTROY_BROKER"])
def test_a_connection_lost_while_it_authenticates_is_no_refusal(lost):
    """librdkafka uses the error code of a refusal for it."""
    reason = KafkaError(getattr(KafkaError, lost)).str()
    refusals = Refusals()
    refusals.take(
        KafkaError(KafkaError._AUTHENTICATION, f"SASL PLAIN mechanism handshake failed: {reason}: ...")
    )
    assert refusals.last is None


@pytest.mark.parametrize(
    "words",
    [
        "OAuth token not set within 10 seconds timeout",
        "Failed to acquire SASL OAUTHBEARER token: OAuth callback raised exception",
    ],
)
def test_a_token_that_cannot_be_got_is_no_refusal(words):
    """Confluent-kafka uses the error code of a refusal for it."""
    error = explained(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, words), "producer of 'id'")
    assert isinstance(error, BrokersUnavailable)
    assert "'oauth_cb' fails" in str(error)


@pytest.mark.chaos
def test_confluent_kafkas_words_for_a_token_that_cannot_be_got_are_known():
    """Measured with the installed version, which waits for ten seconds."""

    def unreachable(_):
        raise ConnectionResetError

    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": unreachable,
    }
    with pytest.raises(BrokersUnavailable, match="'oauth_cb' fails"):
        make_producer(settings)


def test_a_producer_whose_token_is_not_renewed_can_be_closed(monkeypatch):
    """The issuer does not answer any more, and the thread that polls the instance calls the function."""
    monkeypatch.setattr(security, "CALLBACK_SECONDS", 0.1)
    answered = threading.Event()
    renewals = []

    def token(_):
        renewals.append(None)
        if len(renewals) > 1:
            answered.wait(60)
        return "token", time.time() + 1.0

    oauth = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}
    config = ClientConfig.of({"bootstrap.servers": "127.0.0.1:1", **oauth})
    producer = TransactionalProducer(config, "eos.g", transaction_timeout=60.0, delivery_timeout=30.0)
    wait_until(lambda: len(renewals) > 1)
    producer.close()
    assert not answered.is_set()
    answered.set()


class HangsUp(socketserver.BaseRequestHandler):
    """A broker that closes the connection instead of answering SaslHandshake."""

    def handle(self):
        while size := self.request.recv(4, socket.MSG_WAITALL):
            request = self.request.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
            kind, version, correlation = struct.unpack_from(">hhi", request)
            if kind != 18:
                self.server.hung_up += 1
                return
            # ApiVersions: version 0 only; SaslHandshake in versions 0 and 1, and ApiVersions.
            answer = struct.pack(">ihi", correlation, 35 if version else 0, 2)
            answer += struct.pack(">hhhhhh", 17, 0, 1, 18, 0, 0)
            self.request.sendall(struct.pack(">i", len(answer)) + answer)


def test_librdkafkas_words_for_a_lost_connection_are_known():
    """Measured with the installed version: the connection breaks after SaslHandshake was sent."""
    refusals, heard = Refusals(), []

    def take(error):
        heard.append(error)
        refusals.take(error)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HangsUp) as server:
        server.daemon_threads, server.hung_up = True, 0
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        settings = {
            "bootstrap.servers": f"127.0.0.1:{server.server_address[1]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "secret",
            "error_cb": take,
        }
        client = AdminClient(settings, logger=QuietLog())
        deadline = time.monotonic() + 60
        while not any(e.code() == KafkaError._AUTHENTICATION for e in heard) and time.monotonic() < deadline:
            client.poll(0.1)
        server.shutdown()
    assert server.hung_up
    assert [e.code() for e in heard if "handshake failed" in e.str()] != []
    assert refusals.last is None


@pytest.mark.process
def test_importing_the_package_imports_no_client():
    """confluent-kafka and kafka-python are loaded by the modules that use them."""
    code = (
        "import sys, airflow_eos.broker\n"
        "assert not {'confluent_kafka', 'kafka', 'pyarrow'} & set(sys.modules), 'too much'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
