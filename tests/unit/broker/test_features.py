"""Whether brokers verify partitions of a transaction, from their request versions and settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.errors import KafkaConnectionError
from kafka.protocol.metadata import ApiVersionsResponse

from airflow_eos.broker.features import partition_verification, transaction_max_timeout_ms


class Answer:
    def __init__(self, value):
        self.value = value

    def result(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class FakeAdmin:
    """Answers DescribeCluster and DescribeConfigs of brokers 1..n; an exception in ``settings`` is raised."""

    def __init__(self, *settings):
        self._settings = settings
        self.client = self

    def ask(self, doing, question, *, timeout):
        return question(timeout)

    def describe_cluster(self, request_timeout):
        return Answer(SimpleNamespace(nodes=[SimpleNamespace(id=i + 1) for i in range(len(self._settings))]))

    def describe_configs(self, resources, request_timeout):
        (resource,) = resources  # librdkafka refuses more than one broker
        settings = self._settings[int(resource.name) - 1]
        if not isinstance(settings, Exception):
            settings = {name: SimpleNamespace(value=value) for name, value in settings.items()}
        return {resource: Answer(settings)}


def api_versions(add_partitions, supported=None, finalized=None):
    """Return an ApiVersions answer as it comes off the wire, in version 3."""
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


class FakeConnections:
    """Brokers that speak AddPartitionsToTxn up to a version each, or give a whole answer."""

    def __init__(self, *versions):
        self._versions = versions

    async def send(self, request, node, *, timeout=None):
        version = self._versions[node - 1]
        if isinstance(version, Exception):
            raise version
        return api_versions(version) if isinstance(version, int) else version

    async def retry_async(self, attempt, *, subject, timeout):
        return await attempt()

    def run(self, coroutine):
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("the coroutine waits for something")


ON = {"transaction.partition.verification.enable": "true"}
OFF = {"transaction.partition.verification.enable": "false"}
DOWN = KafkaException(KafkaError(KafkaError._TIMED_OUT))
REFUSED = KafkaConnectionError("refused")
FORBIDDEN = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))


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
        ((5, REFUSED), (ON, DOWN), True),
        ((REFUSED, 5), (DOWN, OFF), False),
    ],
)
def test_verification_must_hold_on_every_broker(versions, settings, expected):
    """One that is too old or has it off decides; the unreadable is unknown; the dead do not count."""
    assert partition_verification(FakeConnections(*versions), FakeAdmin(*settings), timeout=1.0) is expected


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
    """Version 4 of AddPartitionsToTxn is for brokers among themselves (KAFKA-15757)."""
    answer = api_versions(hidden, supported, finalized)
    assert partition_verification(FakeConnections(answer), FakeAdmin(ON), timeout=1.0) is expected


def test_features_of_one_broker_do_not_speak_for_an_older_one():
    """Each broker must show it; what one supports says nothing of the others."""
    new, old = api_versions(3, {"metadata.version": 25}), api_versions(3, {"metadata.version": 11})
    assert partition_verification(FakeConnections(new, old), FakeAdmin(ON, ON), timeout=1.0) is False


def test_the_smallest_limit_counts():
    """Any broker may become the coordinator; without permission the limit is unknown."""
    name = "transaction.max.timeout.ms"
    assert transaction_max_timeout_ms(FakeAdmin({name: "900000"}, {name: "60000"}), timeout=1.0) == 60_000
    assert transaction_max_timeout_ms(FakeAdmin(FORBIDDEN), timeout=1.0) is None


def test_other_failures_are_no_answer():
    """Only a missing permission means unknown."""
    broken = KafkaException(KafkaError(KafkaError.INVALID_REQUEST))
    with pytest.raises(KafkaException):
        transaction_max_timeout_ms(FakeAdmin(broken), timeout=1.0)
