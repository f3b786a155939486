"""kafka-python's logs of a login have no credentials."""

from __future__ import annotations

import logging

import pytest
from kafka.net.connection import KafkaConnection
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest

from airflow_eos.wire.login_log import quiet_logging

SECRET = b"\0me\0password-marker"


@pytest.fixture
def heard(caplog):
    """Capture kafka-python's loggers at DEBUG."""
    quiet_logging()
    quiet_logging()
    caplog.set_level(logging.DEBUG, "kafka")
    return caplog


@pytest.mark.parametrize(
    "request_", [SaslAuthenticateRequest(SECRET, version=2), SaslBytesRequest(SECRET)], ids=["v1", "v0"]
)
def test_a_login_is_named_and_not_shown(heard, request_):
    """Neither the request nor its bytes, in the framing of current brokers and of very old ones."""
    parser = KafkaProtocol(client_id="test", ident="node=1")
    parser.send_request(request_)
    assert SECRET in parser.send_bytes()
    logging.getLogger(KafkaConnection.__module__).debug("%s Request %d: %s", "node=1", 1, request_)
    lines = heard.messages
    assert len(lines) == 3
    assert not [line for line in lines if "password-marker" in line]
    assert [line.count(f"{type(request_).__name__}(***)") for line in lines] == [1, 0, 1]


def test_other_requests_are_logged_as_ever(heard):
    """DEBUG stays useful."""
    KafkaProtocol(client_id="test", ident="node=1").send_request(MetadataRequest(version=12, topics=[]))
    assert "MetadataRequest(version=12" in heard.messages[0]
