"""Reads broker settings and request versions that decide which guarantees the brokers give."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from airflow_eos.exceptions import RequestRefused
from airflow_eos.model.kafka import BrokerFeatures
from airflow_eos.wire.backoff import NotYet, describe, is_transient, translated
from airflow_eos.wire.connection import METADATA_TIMEOUT, BrokerConnections
from airflow_eos.wire.describe_configs import BROKER, configs_request

log = logging.getLogger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"
ID_EXPIRATION = "transactional.id.expiration.ms"
VERIFICATION = "transaction.partition.verification.enable"

_ADD_PARTITIONS_TO_TXN = 24
_VERIFYING_VERSION = 4
"""AddPartitionsToTxn version of brokers that verify partitions with the coordinator: Kafka 3.6 (KIP-890)."""
_VERIFYING_FEATURES = {"metadata.version": 12, "transaction.version": 1}
"""Lowest feature levels that only Kafka 3.6 and later support (3.6-IV0; TV_1, of 4.0)."""
_BROKER_TIMEOUT = 10.0
_SETTINGS = (MAX_TIMEOUT, ID_EXPIRATION, VERIFICATION)
_FORBIDDEN = kafka_errors.ClusterAuthorizationFailedError.errno


def broker_features(connections: BrokerConnections, *, timeout: float = METADATA_TIMEOUT) -> BrokerFeatures:
    """Ask all brokers at once; brokers that do not answer are left out, as long as one does.

    Sends one ApiVersions and one DescribeConfigs request to each broker of the last Metadata answer.

    :param timeout: seconds, including all retries.
    :raises BrokersUnavailable: no broker answers in time.
    """

    async def ask() -> BrokerFeatures:
        nodes = connections.known_brokers()
        about_us = {"client_software_name": "airflow-eos", "client_software_version": "0"}
        versions = [
            connections.send(ApiVersionsRequest(**about_us, max_version=3), node, timeout=_BROKER_TIMEOUT)
            for node in nodes
        ]
        settings = [
            connections.send(configs_request(BROKER, [str(node)], _SETTINGS), node, timeout=_BROKER_TIMEOUT)
            for node in nodes
        ]
        verify = all(map(_can_verify, await _answers(versions, "request versions of a broker")))
        readable = _readable(await _answers(settings, "settings of a broker"))
        maximum, expiration = (_smallest(readable, name) for name in (MAX_TIMEOUT, ID_EXPIRATION))
        return BrokerFeatures(_verified(readable) if verify else False, maximum, expiration)

    return connections.run(connections.retry_async(ask, subject="features of the brokers", timeout=timeout))


async def _answers(futures: Sequence[Any], subject: str) -> list[Any]:
    """Return the answers of the brokers that gave one.

    :raises NotYet: none did, or no broker is known.
    """
    answers: list[Any] = []
    last: Exception = NotYet("no broker is known")
    for future in futures:
        try:
            answer = await future
        except Exception as error:
            if not is_transient(error):
                raise translated(error, subject) from error
            last = error
            continue
        answers.append(answer)
    if not answers:
        raise last
    return answers


def _can_verify(answer: ApiVersionsResponse) -> bool:
    """Return whether the broker is Kafka 3.6 or later, by a request version or a feature level.

    AddPartitionsToTxn from version 4 on is for brokers only, and a broker may hide it from clients
    (KAFKA-15757). Every broker supports a finalised level.
    """
    # The list is empty if the broker rejects the request's version; such a broker is too old anyway.
    versions = {api.api_key: api.max_version for api in answer.api_keys}
    if versions.get(_ADD_PARTITIONS_TO_TXN, 0) >= _VERIFYING_VERSION:
        return True
    levels = [(feature.name, feature.max_version) for feature in answer.supported_features or ()]
    levels += [(feature.name, feature.max_version_level) for feature in answer.finalized_features or ()]
    return any(level >= _VERIFYING_FEATURES.get(name, level + 1) for name, level in levels)


def _readable(answers: Sequence[Any]) -> list[Mapping[str, str]]:
    """Return the settings of each broker that has answered without an error; empty if they may not be read.

    :raises RequestRefused: no broker has, and neither permissions nor time will change that.
    """
    results = [result for answer in answers for result in answer.results]
    codes = [result.error_code for result in results]
    if _FORBIDDEN in codes:
        log.info("Cannot read broker settings: DescribeConfigs on the cluster is not granted")
        return []
    if all(codes):
        error = kafka_errors.for_code(codes[0])()
        if is_transient(error):
            raise error
        raise RequestRefused(f"settings of broker {results[0].resource_name}: {describe(error)}")
    return [
        {entry.name: entry.value for entry in result.configs if entry.value is not None}
        for result in results
        if not result.error_code
    ]


def _smallest(settings: Sequence[Mapping[str, str]], name: str) -> int | None:
    """Return the smallest value: any broker may become the coordinator."""
    return min((int(values[name]) for values in settings if name in values), default=None)


def _verified(settings: Sequence[Mapping[str, str]]) -> bool | None:
    values = [values[VERIFICATION] for values in settings if VERIFICATION in values]
    return all(value.lower() == "true" for value in values) if values else None
