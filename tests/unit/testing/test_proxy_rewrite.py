"""Addresses in answers are replaced by the proxy's; clients can read answers that the proxy makes up."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from airflow_eos_testing.faults.rewrite import refusal, rewritten
from airflow_eos_testing.faults.rules import Request


def moved(host, port):
    return "proxy", port + 1


def answer(kind, version, **fields):
    message = kind[version](**fields)
    message.with_header(correlation_id=7)
    return bytes(message.encode(header=True))


def request(api, version, frame=b""):
    return Request(api, version, 7, "broker:9092", frame)


@pytest.mark.parametrize("version", [1, 8, 12, 13])
def test_metadata_names_the_proxy(version):
    """All brokers, in plain and in flexible versions; the correlation id stays."""
    broker = MetadataResponse.MetadataResponseBroker
    brokers = [broker(node_id=n, host="broker", port=9090 + n, rack=None) for n in (1, 2)]
    data = answer(MetadataResponse, version, brokers=brokers, cluster_id="c", controller_id=1, topics=[])
    new = rewritten(request("Metadata", version), data, moved, frozenset())
    read = MetadataResponse[version].decode(new, header=True)
    assert [(b.node_id, b.host, b.port) for b in read.brokers] == [(1, "proxy", 9092), (2, "proxy", 9093)]
    assert read.header.correlation_id == 7


@pytest.mark.parametrize("port", [9092, -1])
def test_a_coordinator_is_named_by_the_proxy_and_none_stays_none(port):
    """While a coordinator is elected the answer holds no address."""
    data = answer(
        FindCoordinatorResponse, 2, node_id=1, host="broker", port=port, error_code=0, error_message=None
    )
    new = rewritten(request("FindCoordinator", 2), data, moved, frozenset())
    read = FindCoordinatorResponse[2].decode(new, header=True)
    assert (read.host, read.port) == (("proxy", 9093) if port > 0 else ("broker", -1))


def test_coordinators_of_newer_versions_are_named_by_the_proxy():
    """From version 4 on an answer holds many (KIP-699)."""
    coordinator = FindCoordinatorResponse.Coordinator(
        key="t", node_id=1, host="broker", port=9092, error_code=0, error_message=None
    )
    data = answer(FindCoordinatorResponse, 4, coordinators=[coordinator])
    new = rewritten(request("FindCoordinator", 4), data, moved, frozenset())
    (read,) = FindCoordinatorResponse[4].decode(new, header=True).coordinators
    assert (read.host, read.port) == ("proxy", 9093)


@pytest.mark.parametrize(
    ("api", "kind", "version"), [("Produce", ProduceResponse, 11), ("Fetch", FetchResponse, 16)]
)
def test_addresses_of_moved_leaders_are_the_proxys(api, kind, version):
    """KIP-951: a refusal contains the new leader's address."""
    node = kind.NodeEndpoint(node_id=2, host="broker", port=9092, rack=None)
    data = answer(kind, version, responses=[], node_endpoints=[node])
    assert rewritten(request(api, version), data, moved, frozenset({b"elsewhere"})) == data
    new = rewritten(request(api, version), data, moved, frozenset({b"broker"}))
    (read,) = kind[version].decode(new, header=True).node_endpoints
    assert (read.host, read.port) == ("proxy", 9093)


@pytest.mark.parametrize("version", [9, 11])
def test_a_refusal_has_the_error_for_every_partition_asked_for(version):
    """It also has the correlation id of the request."""
    topic = ProduceRequest.TopicProduceData
    parts = [topic.PartitionProduceData(index=n, records=b"x") for n in (0, 3)]
    message = ProduceRequest[version](
        transactional_id=None, acks=-1, timeout_ms=1, topic_data=[topic(name="out", partition_data=parts)]
    )
    message.with_header(correlation_id=7, client_id="c")
    frame = bytes(message.encode(header=True))
    read = ProduceResponse[version].decode(refusal(request("Produce", version, frame), 19), header=True)
    assert read.header.correlation_id == 7
    (answered,) = read.responses
    assert answered.name == "out"
    assert [(p.index, p.error_code) for p in answered.partition_responses] == [(0, 19), (3, 19)]
