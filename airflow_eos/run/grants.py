"""Checks a run's permissions before it reads, not when its output is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import OFFSETS_TOPIC

if TYPE_CHECKING:
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import Cluster

READ_AND_WRITE = frozenset({"READ", "WRITE"})  # the proof reads what leaders know of a topic's producers


def check_run(cluster: Cluster, spec: RunSpec) -> None:
    """Check the permissions on all topics and groups that are known before reading.

    Fencing has shown Write on the transactional id.

    :raises AuthorizationFailed: names each missing grant.
    """
    topics = {name: frozenset({"READ"}) for name in spec.source_topics}
    for name in (spec.sink_topic, spec.dead_letter_topic, spec.ledger.topic):
        if name is not None:
            topics[name] = READ_AND_WRITE
    topics[OFFSETS_TOPIC] = frozenset({"DESCRIBE"})
    _check(cluster, topics, keys.offsets_group(spec))


def check_targets(cluster: Cluster, topics: Collection[str]) -> None:
    """Check the permissions on topics that rows name.

    :raises AuthorizationFailed: names each missing grant.
    """
    _check(cluster, dict.fromkeys(topics, READ_AND_WRITE), None)


def _check(cluster: Cluster, topics: Mapping[str, frozenset[str]], group: str | None) -> None:
    told = cluster.topic_operations(topics) if topics else {}
    missing = [
        f"{' and '.join(sorted(wanted - allowed))} on topic {name!r}"
        for name, wanted in sorted(topics.items())
        if (allowed := told.get(name)) is not None and wanted - allowed
    ]
    if group is not None:
        of_group = cluster.group_operations(group)
        if of_group is not None and "READ" not in of_group:
            missing.append(f"READ on group {group!r}")
    if missing:
        raise AuthorizationFailed(
            f"this principal lacks {', '.join(missing)}; nothing was read or written. docs/security.md has "
            "all that a run needs, as commands"
        )
