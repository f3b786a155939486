"""Adds to the error of a missing topic what the run uses the topic for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_eos.exceptions import UnknownTopic
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster


def roles(spec: RunSpec) -> dict[str, Collection[str]]:
    """Return the topics that are known before a run reads, by what they are for."""
    written = {"sink": spec.sink_topic, "dead letter": spec.dead_letter_topic}
    return {"source": spec.source_topics} | {role: [name] for role, name in written.items() if name}


def described(cluster: Cluster, roles: Mapping[str, Collection[str]]) -> Mapping[str, TopicDescription]:
    """Return id and partition count per topic, by one request.

    :param roles: topics by their use, such as ``source``.
    :raises UnknownTopic: names a topic that does not exist, and its use.
    :raises AuthorizationFailed: Describe on a topic is missing.
    """
    try:
        return cluster.describe_topics([name for names in roles.values() for name in names])
    except UnknownTopic as error:
        text = error.message
        missing = [role for role, names in roles.items() if any(repr(name) in text for name in names)]
        raise UnknownTopic(f"{' and '.join(missing)} {text}") from error
