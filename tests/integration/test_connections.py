"""Connections leave nothing open, whatever the broker at the other end does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest

from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections


def open_sockets():
    """Names of the sockets of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {target for target in found if target.startswith("socket:")}


def test_closing_gives_up_what_a_hanging_broker_does_not_read(embedded_kafka):
    """More is queued than the sockets hold, and nobody reads: close() still closes.

    Only the sockets of these connections count: a client of an earlier test may close its own meanwhile.
    """
    topic = embedded_kafka.create_topic("hangs")
    before = open_sockets()
    with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
        (leader,) = set(connections.leaders([topic]).values())
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
def test_a_request_that_cannot_be_encoded_fails(embedded_kafka):
    """Also where its connection is still being made: nothing waits for an answer to what was never sent."""
    with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
        for _ in range(2):
            with pytest.raises(UnicodeEncodeError):
                connections.coordinator("transaction", "\udcff")
        assert connections.coordinator("transaction", "work") in connections.brokers()
