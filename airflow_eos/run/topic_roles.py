"""The topics of a run by their use; adds it to the error of a missing topic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_eos.exceptions import UnknownTopic
from airflow_eos.model.kafka import TopicDescription
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster
from airflow_eos.run import grants


def roles(spec: RunSpec) -> dict[str, Collection[str]]:
    """Return the topics that are known before a run reads, by what they are for."""
    written = {"sink": spec.sink_topic, "dead letter": spec.dead_letter_topic}
    return {"source": spec.source_topics} | {role: [name] for role, name in written.items() if name}


@dataclass(frozen=True, slots=True)
class TopicsNow:
    """The topics of a run as they were at one time, by one request.

    :param visible: topics that exist and may be described, those of ledger and offsets among them.
    """

    cluster: Cluster
    visible: Mapping[str, TopicDescription]

    @classmethod
    def of(cls, cluster: Cluster, spec: RunSpec) -> TopicsNow:
        """Request the topics that are known before the run reads."""
        return cls(cluster, cluster.describe_topics((), optional=sorted(grants.needed(spec))))

    def described(self, roles: Mapping[str, Collection[str]]) -> Mapping[str, TopicDescription]:
        """Return topics that must exist; arguments and errors as :func:`described`."""
        names = {name for names in roles.values() for name in names}
        if names <= self.visible.keys():
            return {name: self.visible[name] for name in names}
        return described(self.cluster, roles)


def described(cluster: Cluster, roles: Mapping[str, Collection[str]]) -> Mapping[str, TopicDescription]:
    """Return what each topic is now, by one request.

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
