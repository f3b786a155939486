"""The topics of a run: its permissions on them, and whether they are still those that it began with.

Brokers report little of this: a request for a missing partition is retried until its time-out, and the commit
of a transaction whose topic was deleted succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_eos.exceptions import AuthorizationFailed, OutputLost, ProcessFailed, SinkChanged, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import INTERNAL_TOPICS, OFFSETS_TOPIC, GroupDescription, TopicDescription
from airflow_eos.model.output import SealedManifest
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster

log = logging.getLogger(__name__)

_READ_AND_WRITE = frozenset({"READ", "WRITE"})  # the proof reads what leaders know of a topic's producers


@dataclass(frozen=True, slots=True)
class TopicsNow:
    """The topics of a run as they were at one time, by one request.

    :param visible: topics that exist and may be described, those of ledger and offsets among them.
    """

    cluster: Cluster
    spec: RunSpec
    visible: Mapping[str, TopicDescription]

    @classmethod
    def of(cls, cluster: Cluster, spec: RunSpec) -> TopicsNow:
        """Request the topics that are known before the run reads."""
        return cls(cluster, spec, cluster.describe_topics((), optional=sorted(_needed(spec))))

    def described(self, *, output: bool = False) -> Mapping[str, TopicDescription]:
        """Return the source topics, which must exist; raises as :func:`described`.

        :param output: also the output topics that are known before the run reads.
        """
        roles: dict[str, Collection[str]] = {"source": self.spec.source_topics}
        written = {"sink": self.spec.sink_topic, "dead letter": self.spec.dead_letter_topic}
        roles |= {role: [name] for role, name in written.items() if name and output}
        names = {name for names in roles.values() for name in names}
        if names <= self.visible.keys():
            return {name: self.visible[name] for name in names}
        return described(self.cluster, roles)

    def permitted(self) -> GroupDescription:
        """Check the permissions that are known before the run reads; return its group.

        Fencing has shown Write on the transactional id.

        :raises AuthorizationFailed: names each missing grant.
        """
        needed = _needed(self.spec)
        allowed = {name: topic.operations for name, topic in self.visible.items()}
        if others := needed.keys() - allowed.keys():
            allowed |= self.cluster.topic_operations(others)
        group = described_group(self.cluster, keys.offsets_group(self.spec))
        refused = group.operations is not None and "READ" not in group.operations
        _refuse_missing(needed, allowed, [f"READ on group {group.group!r}"] if refused else [])
        return group


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
        subject = text.partition("; did you mean")[0]  # that may be a topic of another role
        missing = [role for role, names in roles.items() if any(repr(name) in subject for name in names)]
        raise UnknownTopic(f"{' and '.join(missing)} {text}") from error


def described_group(cluster: Cluster, name: str) -> GroupDescription:
    """Return a group; if Describe is not granted, one without any allowed operation."""
    try:
        return cluster.describe_group(name)
    except AuthorizationFailed:  # brokers do not even name the coordinator
        return GroupDescription(name, 0, frozenset())


def refuse_targets(spec: RunSpec, manifest: SealedManifest) -> None:
    """Refuse rows whose own ``topic`` is an internal topic, or a source topic unless the run may loop.

    :raises ProcessFailed: naming the topics; nothing was written.
    """
    if internal := sorted(manifest.topics & INTERNAL_TOPICS):
        raise ProcessFailed(
            f"process returned rows whose 'topic' is written by brokers only: {', '.join(internal)}; "
            "write them to another topic"
        )
    looped = sorted(manifest.topics.intersection(spec.source_topics))
    if looped and not spec.allow_loop:
        raise ProcessFailed(
            f"process returned rows whose 'topic' is a source topic: {', '.join(looped)}; the next run would "
            "read what this run writes. Write them to another topic, or set allow_loop=True where the loop "
            "is wanted"
        )


@dataclass(eq=False)
class Targets:
    """The target topics of one run, by name and id.

    :ivar proven: as they were when their leaders confirmed what was written.
    """

    cluster: Cluster
    proven: Mapping[str, TopicDescription] = field(default_factory=dict)

    def fit(self, manifest: SealedManifest, described: Mapping[str, TopicDescription]) -> None:
        """Compare the topics with the sealed batches, before the transaction opens.

        :param described: at least the topics of the batches, as they are now.
        :raises AuthorizationFailed: Write on a topic, or Read on it, is missing.
        :raises SinkChanged: a topic lacks a partition of the sealed batches.
        """
        _refuse_missing(
            dict.fromkeys(manifest.topics, _READ_AND_WRITE),
            {name: described[name].operations for name in manifest.topics},
        )
        for target in manifest.targets:
            partitions = described[target.topic].partitions
            if target.partition >= partitions:
                raise SinkChanged(
                    f"topic {target.topic!r} has {partitions} partition{'s' if partitions != 1 else ''} now, "
                    f"and records were sealed for partition {target.partition}: it was deleted and "
                    "recreated meanwhile; nothing was written, the next try seals for the topic as it is"
                )

    def are_kept(self, run_key: str) -> None:
        """Check the topics after the commit: the output in a deleted topic is lost.

        :raises OutputLost: a written topic does not exist, or has another id.
        """
        lost = [name for name in sorted(self.proven) if not self._is_kept(name)]
        if lost:
            raise OutputLost(
                f"the run is committed, and topic {', '.join(lost)} was deleted or recreated since it was "
                "written: its output there is gone, offsets and run record stand. Write it again with "
                "ReplayOffsetRangesOperator, "
                + (
                    f"from the ranges of {run_key}, and of earlier rounds that `airflow eos verify` names: a "
                    "clear goes on with the next round"
                    if keys.is_round(run_key) and not keys.ends_run(run_key)
                    else "or clear the task with on_committed='reprocess'"
                )
            )

    def _is_kept(self, name: str) -> bool:
        try:
            now = self.cluster.describe_topics([name])[name]
        except UnknownTopic:
            return False
        except Exception as failure:  # noqa: BLE001 - the run is committed; its output is not known to be lost
            log.warning("the run is committed, but cannot check topic %s again: %s", name, failure)
            return True
        return now.topic_id == self.proven[name].topic_id


def _needed(spec: RunSpec) -> Mapping[str, frozenset[str]]:
    """Return the operations that a run needs, per topic that is known before it reads."""
    topics = {name: frozenset({"READ"}) for name in spec.source_topics}
    topics |= dict.fromkeys((*spec.output_topics, spec.ledger.topic), _READ_AND_WRITE)
    return {**topics, OFFSETS_TOPIC: frozenset({"DESCRIBE"})}


def _refuse_missing(
    needed: Mapping[str, frozenset[str]],
    allowed: Mapping[str, frozenset[str] | None],
    others: Sequence[str] = (),
) -> None:
    """Refuse a run that lacks operations on topics.

    :param allowed: None for a topic whose brokers do not report them.
    :param others: what else is missing.
    """
    missing = [
        f"{' and '.join(sorted(operations - granted))} on topic {name!r}"
        for name, operations in sorted(needed.items())
        if (granted := allowed.get(name)) is not None and operations - granted
    ]
    if missing or others:
        raise AuthorizationFailed(
            f"this principal lacks {', '.join([*missing, *others])}; nothing was read or written. "
            "docs/security.md has all that a run needs, as commands"
        )
