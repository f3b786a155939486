"""Checks the topics that a run writes: before it writes, and after its commit.

Brokers do not report it: a request for a missing partition is repeated until its time-out, and the commit of
a transaction whose topic was deleted succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_eos.exceptions import OutputLost, ProcessFailed, SinkChanged, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import INTERNAL_TOPICS
from airflow_eos.run import grants

if TYPE_CHECKING:
    from airflow_eos.model.kafka import TopicDescription
    from airflow_eos.model.output import SealedManifest
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.ports import Cluster

log = logging.getLogger(__name__)


def refuse_targets(spec: RunSpec, manifest: SealedManifest) -> None:
    """Refuse rows whose own ``topic`` is a topic of the brokers, or a source topic unless the run may loop.

    :raises ProcessFailed: naming the topics; nothing was written.
    """
    targets = {target.topic for target in manifest.targets}
    if internal := sorted(targets & INTERNAL_TOPICS):
        raise ProcessFailed(
            f"process returned rows whose 'topic' is written by brokers only: {', '.join(internal)}; "
            "write them to another topic"
        )
    looped = sorted(targets & set(spec.source_topics))
    if looped and not spec.allow_loop:
        raise ProcessFailed(
            f"process returned rows whose 'topic' is a source topic: {', '.join(looped)}; the next run would "
            "read what this run writes. Write them to another topic, or set allow_loop=True where the loop "
            "is wanted"
        )


class Targets:
    """The target topics of one run, by name and id."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._opened: Mapping[str, TopicDescription] = {}

    def fit(self, manifest: SealedManifest, described: Mapping[str, TopicDescription]) -> None:
        """Compare the topics with the sealed batches, before the transaction opens.

        :param described: at least the topics of the batches, as they are now.
        :raises AuthorizationFailed: Write on a topic, or Read on it, is missing.
        :raises SinkChanged: a topic lacks a partition of the sealed batches.
        """
        self._opened = {target.topic: described[target.topic] for target in manifest.targets}
        grants.check_targets(self._opened.values())
        for target in manifest.targets:
            partitions = self._opened[target.topic].partitions
            if target.partition >= partitions:
                raise SinkChanged(
                    f"topic {target.topic!r} has {partitions} partition{'s' if partitions != 1 else ''} now, "
                    f"and records were sealed for partition {target.partition}: it was deleted and made "
                    "again meanwhile; nothing was written, the next try seals for the topic as it is"
                )

    def are_kept(self, run_key: str) -> None:
        """Check the topics after the commit: the output in a deleted topic is lost.

        :param run_key: of the committed run, for the error.
        :raises OutputLost: a written topic does not exist, or has another id.
        """
        lost = [name for name in self._opened if not self._is_kept(name)]
        if lost:
            raise OutputLost(
                f"the run is committed, and topic {', '.join(lost)} was deleted or made again while it was "
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
            now = self._cluster.describe_topics([name])[name]
        except UnknownTopic:
            return False
        except Exception as failure:  # noqa: BLE001 - the run is committed; nothing speaks against its output
            log.warning("the commit is done, topic %s could not be looked at again: %s", name, failure)
            return True
        return now.topic_id == self._opened[name].topic_id
