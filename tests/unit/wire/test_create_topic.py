"""CreateTopics against scripted brokers: every answer, and its effect."""

from __future__ import annotations

from types import SimpleNamespace

import kafka.errors as kafka_errors
import pytest

from airflow_eos.exceptions import AuthorizationFailed, RequestRefused
from airflow_eos.wire.create_topic import create_topic
from tests.unit.wire.fakes import FakeConnections


class FakeBrokers(FakeConnections):
    """Brokers that answer with these error codes, one after the other.

    :param codes: 0: the topic is created.
    """

    def __init__(self, codes):
        super().__init__({})
        self.codes = list(codes)

    async def ask_any_async(self, request):
        self.requests.append(request)
        code = self.codes.pop(0)
        return SimpleNamespace(
            topics=[SimpleNamespace(error_code=code, error_message="3 brokers are needed")]
        )


@pytest.fixture
def create():
    """Create a topic on brokers with these answers; return whether it was new, and the requests."""
    opened = []

    def with_answers(*codes):
        opened.append(brokers := FakeBrokers(codes))
        is_new = create_topic(
            brokers, "books", partitions=4, replication_factor=-1, settings={"cleanup.policy": "compact"}
        )
        return is_new, brokers.requests

    yield with_answers
    for brokers in opened:
        brokers.close()


def test_a_topic_is_created_with_its_settings(create):
    """With a request version in which the brokers choose the replication factor (KIP-464)."""
    is_new, (request,) = create(0)
    assert is_new
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("books", 4, -1)
    assert [(config.name, config.value) for config in topic.configs] == [("cleanup.policy", "compact")]


def test_a_topic_that_exists_is_left_as_it_is(create):
    """Another run created it first."""
    assert create(kafka_errors.TopicAlreadyExistsError.errno)[0] is False


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NotControllerError,
        kafka_errors.RequestTimedOutError,
        kafka_errors.ThrottlingQuotaExceededError,
    ],
)
def test_passing_errors_are_asked_again(create, error):
    """A broker is not the controller, or is busy."""
    is_new, requests = create(error.errno, 0)
    assert (is_new, len(requests)) == (True, 2)


@pytest.mark.parametrize(
    "error", [kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError]
)
def test_a_missing_right_is_named(create, error):
    """The error has the grant."""
    with pytest.raises(AuthorizationFailed, match=r"'books'.*grant this principal Create"):
        create(error.errno)


def test_the_brokers_reason_is_shown(create):
    """For example a policy or a setting."""
    with pytest.raises(RequestRefused, match=r"'books'.*PolicyViolation.*3 brokers are needed"):
        create(kafka_errors.PolicyViolationError.errno)
