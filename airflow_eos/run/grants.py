"""Checks a run's permissions before it reads, not when its output is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import OFFSETS_TOPIC, GroupDescription

if TYPE_CHECKING:
    from airflow_eos.model.kafka import TopicDescription
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import Cluster

READ_AND_WRITE = frozenset({"READ", "WRITE"})  # the proof reads what leaders know of a topic's producers


def needed(spec: RunSpec) -> Mapping[str, frozenset[str]]:
    """Return the operations that a run needs, per topic that is known before it reads."""
    topics = {name: frozenset({"READ"}) for name in spec.source_topics}
    topics |= dict.fromkeys((*spec.output_topics, spec.ledger.topic), READ_AND_WRITE)
    return {**topics, OFFSETS_TOPIC: frozenset({"DESCRIBE"})}


def check_run(cluster: Cluster, spec: RunSpec, topics: Mapping[str, TopicDescription]) -> GroupDescription:
    """Check the permissions on all topics and groups that are known before reading; return the run's group.

    Fencing has shown Write on the transactional id.

    :param topics: as they are now; of those of :func:`needed`, the ones that may be described.
    :raises AuthorizationFailed: names each missing grant.
    """
    wanted = needed(spec)
    allowed = {name: topics[name].operations for name in wanted if name in topics}
    if others := wanted.keys() - topics.keys():
        allowed |= cluster.topic_operations(others)
    missing = _missing(wanted, allowed)
    group = described_group(cluster, keys.offsets_group(spec))
    if group.operations is not None and "READ" not in group.operations:
        missing.append(f"READ on group {group.group!r}")
    _refuse(missing)
    return group


def described_group(cluster: Cluster, name: str) -> GroupDescription:
    """Return a group; where Describe is missing, one without any allowed operation."""
    try:
        return cluster.describe_group(name)
    except AuthorizationFailed:  # brokers do not even name the coordinator
        return GroupDescription(name, 0, frozenset())


def check_targets(topics: Collection[TopicDescription]) -> None:
    """Check the permissions on topics that rows name.

    :raises AuthorizationFailed: names each missing grant.
    """
    wanted = {topic.topic: READ_AND_WRITE for topic in topics}
    _refuse(_missing(wanted, {topic.topic: topic.operations for topic in topics}))


def _missing(wanted: Mapping[str, frozenset[str]], allowed: Mapping[str, frozenset[str] | None]) -> list[str]:
    return [
        f"{' and '.join(sorted(operations - granted))} on topic {name!r}"
        for name, operations in sorted(wanted.items())
        if (granted := allowed.get(name)) is not None and operations - granted
    ]


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        raise AuthorizationFailed(
            f"this principal lacks {', '.join(missing)}; nothing was read or written. docs/security.md has "
            "all that a run needs, as commands"
        )
