"""The admin client is asked until it answers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker.librdkafka import Admin
from airflow_eos.exceptions import BrokersUnavailable, ConfigurationError, UnknownTopic
from airflow_eos.wire.client_config import ClientConfig


@pytest.fixture
def admin():
    """A client that never finds its broker."""
    return Admin(ClientConfig.of({"bootstrap.servers": "127.0.0.1:1"}))


def test_a_question_that_timed_out_is_asked_of_a_new_client(admin):
    """librdkafka keeps waiting for a controller that is dead; a new client finds the new one."""
    asked = []

    def question(_left):
        asked.append(admin.client)
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return "answer"

    assert admin.ask("question", question, timeout=60) == "answer"
    assert asked[0] is not asked[1]


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._DESTROY_BROKER])
def test_other_passing_errors_keep_the_client(admin, code):
    """A coordinator that loads, or a broker that left, is asked again, over the same connections."""
    asked = []

    def question(_left):
        asked.append(admin.client)
        if len(asked) == 1:
            raise KafkaException(KafkaError(code))
        return "answer"

    assert admin.ask("question", question, timeout=60) == "answer"
    assert asked[0] is asked[1]


def test_refused_credentials_end_the_question(admin):
    """No retry can help."""

    def question(_left):
        admin._refusals.take(KafkaError(KafkaError._AUTHENTICATION))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with pytest.raises(ConfigurationError, match="question"):
        admin.ask("question", question, timeout=60)


def test_a_refusal_is_forgotten_when_a_question_was_answered(admin):
    """One broker refused for a while: what times out later is another matter, and is asked again."""
    asked = []

    def question(_left):
        asked.append(admin.client)
        if len(asked) == 1:
            admin._refusals.take(KafkaError(KafkaError._AUTHENTICATION))
        if len(asked) == 2:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return len(asked)

    assert admin.ask("question", question, timeout=60) == 1
    assert admin.ask("question", question, timeout=60) == 3


def test_a_new_client_has_been_refused_by_nobody(admin):
    """What the one before hears late is not its own."""
    heard = admin._refusals
    admin.client = admin._new_client()
    heard.take(KafkaError(KafkaError._AUTHENTICATION))
    assert heard.last is not None
    assert admin.refusal() is None


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError._TIMED_OUT, BrokersUnavailable), (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopic)],
)
def test_the_last_error_is_raised_in_this_packages_terms(admin, code, error):
    """In the end, or at once where no retry can help."""

    def question(_left):
        raise KafkaException(KafkaError(code))

    with pytest.raises(error, match="question"):
        admin.ask("question", question, timeout=0.2)
