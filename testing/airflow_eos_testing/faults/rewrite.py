"""Replaces broker addresses in responses with the proxy's, and builds the proxy's own answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.faults.rules import Request

Translate = Callable[[str, int], tuple[str, int]]

_TAIL = 512


def rewritten(request: Request, response: bytes, translate: Translate, hosts: frozenset[bytes]) -> bytes:
    """Return the response with every broker address translated.

    :param response: correlation id, header and body, without the length.
    :param hosts: host names of the brokers seen so far.
    """
    from kafka.protocol import admin, consumer, metadata, producer

    if request.api == "Metadata":
        return _changed(metadata.MetadataResponse, request, response, "brokers", translate)
    if request.api == "DescribeCluster":
        return _changed(admin.DescribeClusterResponse, request, response, "brokers", translate)
    if request.api == "FindCoordinator":
        return _changed(metadata.FindCoordinatorResponse, request, response, "coordinators", translate)
    # If leaders moved, these end with a list of their addresses (KIP-951).
    if request.api in ("Produce", "Fetch") and any(host in response[-_TAIL:] for host in hosts):
        kind = producer.ProduceResponse if request.api == "Produce" else consumer.FetchResponse
        return _changed(kind, request, response, "node_endpoints", translate)
    return response


def _changed(kind: Any, request: Request, response: bytes, field: str, translate: Translate) -> bytes:
    message = kind[request.version].decode(response, header=True)
    places = list(getattr(message, field, None) or ())
    if request.api == "FindCoordinator" and not places:
        places = [message]
    for place in places:
        if place.port > 0:  # an answer without a coordinator has port -1
            place.host, place.port = translate(place.host, place.port)
    return bytes(message.encode(header=True))


def refusal(request: Request, error_code: int) -> bytes:
    """Return an answer to a Produce request with an error for every partition.

    :raises ConfigurationError: the proxy cannot answer for this API.
    """
    from kafka.protocol.producer import ProduceRequest, ProduceResponse

    if request.api != "Produce":
        raise ConfigurationError(f"refuse({request.api!r}): the proxy can answer Produce requests only")
    produced = ProduceRequest[request.version].decode(request.frame, header=True)
    topic_class = ProduceResponse.TopicProduceResponse
    part_class = topic_class.PartitionProduceResponse
    responses = [
        topic_class(
            name=topic.name,
            topic_id=getattr(topic, "topic_id", None),
            partition_responses=[
                part_class(index=part.index, error_code=error_code, base_offset=-1, log_append_time_ms=-1)
                for part in topic.partition_data
            ],
        )
        for topic in produced.topic_data
    ]
    answer = ProduceResponse[request.version](responses=responses, throttle_time_ms=0)
    answer.with_header(correlation_id=request.correlation_id)
    return bytes(answer.encode(header=True))
