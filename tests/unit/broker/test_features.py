"""Whether brokers verify partitions of a transaction, from their request versions and settings."""

from __future__ import annotations

import pytest
from kafka.errors import InvalidRequestError, KafkaConnectionError
from kafka.protocol.admin import DescribeConfigsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from airflow_eos.broker.features import broker_features
from airflow_eos.exceptions import RequestRefused


def api_versions(add_partitions, supported=None, finalized=None):
    """Return an ApiVersions answer in its wire form, in version 3."""
    answer = ApiVersionsResponse(
        error_code=0,
        throttle_time_ms=0,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=version)
            for key, version in ((0, 13), (24, add_partitions))
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=1, max_version=level)
            for name, level in (supported or {}).items()
        ],
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=1, max_version_level=level)
            for name, level in (finalized or {}).items()
        ],
    )
    return ApiVersionsResponse.decode(answer.encode(version=3), version=3)


def settings_of(broker, code, values):
    """Return a DescribeConfigs answer in its wire form, in version 4."""
    result = DescribeConfigsResponse.DescribeConfigsResult
    configs = [
        result.DescribeConfigsResourceResult(
            name=name, value=value, read_only=False, config_source=5, is_sensitive=False, synonyms=[],
            config_type=2, documentation=None,
        )
        for name, value in values.items()
    ]  # fmt: skip
    answer = DescribeConfigsResponse(
        throttle_time_ms=0,
        results=[
            result(
                error_code=code,
                error_message=None,
                resource_type=4,
                resource_name=str(broker),
                configs=configs,
            )
        ],
    )
    return DescribeConfigsResponse.decode(answer.encode(version=4), version=4)


class FakeConnections:
    """Brokers 1 to n.

    :param versions: versions of AddPartitionsToTxn, or a whole answer, or an exception.
    :param settings: settings by name, or an error code, or an exception.
    """

    def __init__(self, versions, settings):
        self._versions, self._settings = versions, settings

    def known_brokers(self):
        return [number + 1 for number in range(len(self._versions))]

    async def send(self, request, node, *, timeout):
        if isinstance(request, ApiVersionsRequest):
            version = self._versions[node - 1]
            answer = api_versions(version) if isinstance(version, int) else version
        else:
            (resource,) = request.resources
            assert resource.resource_name == str(node)
            values = self._settings[node - 1]
            if isinstance(values, int):
                answer = settings_of(node, values, {})
            else:
                answer = settings_of(node, 0, values) if isinstance(values, dict) else values
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def retry_async(self, attempt, *, subject, timeout):
        return await attempt()

    def run(self, coroutine):
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("the coroutine waits for something")


def verified(versions, settings):
    return broker_features(FakeConnections(versions, settings), timeout=1.0).partition_verification


ON = {"transaction.partition.verification.enable": "true"}
OFF = {"transaction.partition.verification.enable": "false"}
DOWN = KafkaConnectionError("down")
UNAVAILABLE = 8
FORBIDDEN = 31


@pytest.mark.parametrize(
    ("versions", "settings", "expected"),
    [
        ((5, 5), (ON, ON), True),
        ((5, 5), (ON, OFF), False),
        ((5, 3), (ON, ON), False),
        ((3,), ({},), False),
        ((3,), (FORBIDDEN,), False),
        ((4,), (FORBIDDEN,), None),
        ((4,), ({},), None),
        ((5, DOWN), (ON, DOWN), True),
        ((DOWN, 5), (DOWN, OFF), False),
        ((5, 5), (UNAVAILABLE, ON), True),
        ((5, 5), (FORBIDDEN, ON), None),
    ],
)
def test_verification_must_hold_on_every_broker(versions, settings, expected):
    """One that is too old, or has it off, decides; unreadable ones are unknown; dead ones do not count."""
    assert verified(versions, settings) is expected


@pytest.mark.parametrize(
    ("supported", "finalized", "expected"),
    [
        ({"metadata.version": 14}, {}, True),
        ({"metadata.version": 11}, {"metadata.version": 12}, True),
        ({"transaction.version": 2}, {}, True),
        ({}, {"transaction.version": 1}, True),
        ({"metadata.version": 11, "transaction.version": 0}, {"metadata.version": 7}, False),
        ({"group.version": 20, "kraft.version": 20}, {"kraft.version": 20}, False),
    ],
)
@pytest.mark.parametrize("hidden", [3, 0])
def test_a_broker_that_keeps_its_request_version_from_clients_is_known_by_its_features(
    hidden, supported, finalized, expected
):
    """Version 4 of AddPartitionsToTxn is only used between brokers (KAFKA-15757)."""
    answer = api_versions(hidden, supported, finalized)
    assert verified([answer], [ON]) is expected


def test_features_of_one_broker_do_not_speak_for_an_older_one():
    """Each broker has to show the feature; one broker proves nothing about the others."""
    new, old = api_versions(3, {"metadata.version": 25}), api_versions(3, {"metadata.version": 11})
    assert verified([new, old], [ON, ON]) is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transaction.max.timeout.ms", "transaction_max_timeout_ms"),
        ("transactional.id.expiration.ms", "transactional_id_expiration_ms"),
    ],
)
def test_the_smallest_limit_counts(name, value):
    """Any broker may become the coordinator; without permission the limit is unknown."""
    both = FakeConnections([5, 5], [{name: "900000"}, {name: "60000"}])
    assert getattr(broker_features(both, timeout=1.0), value) == 60_000
    assert getattr(broker_features(FakeConnections([5], [FORBIDDEN]), timeout=1.0), value) is None


def test_other_failures_are_no_answer():
    """Only a missing permission means unknown."""
    with pytest.raises(RequestRefused, match="broker 1: InvalidRequestError"):
        broker_features(FakeConnections([5], [InvalidRequestError.errno]), timeout=1.0)


def test_brokers_that_do_not_answer_are_no_answer():
    """Without any answer, nothing is known."""
    with pytest.raises(KafkaConnectionError):
        broker_features(FakeConnections([DOWN], [ON]), timeout=1.0)
    with pytest.raises(KafkaConnectionError):
        broker_features(FakeConnections([5], [DOWN]), timeout=1.0)
