"""Which of a run's topics is missing: the brokers name the topic, a run knows what it is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_eos.exceptions import UnknownTopic
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.ports import Cluster


def described(cluster: Cluster, roles: Mapping[str, Collection[str]]) -> Mapping[str, TopicDescription]:
    """Return id and partition count per topic, all in one request.

    :param roles: topics by what they are for, such as ``source``.
    :raises UnknownTopic: names a topic that does not exist, and what it is for.
    :raises AuthorizationFailed: Describe on a topic is missing.
    """
    try:
        return cluster.describe_topics([name for names in roles.values() for name in names])
    except UnknownTopic as error:
        text = error.message
        missing = [role for role, names in roles.items() if any(repr(name) in text for name in names)]
        raise UnknownTopic(f"{' and '.join(missing)} {text}") from error
