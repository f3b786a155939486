"""The admin client is asked until it answers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_eos.broker.admin import Admin
from airflow_eos.exceptions import BrokersUnavailable, UnknownTopic
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

    assert admin.ask("question", question, timeout=5) == "answer"
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

    assert admin.ask("question", question, timeout=5) == "answer"
    assert asked[0] is asked[1]


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
