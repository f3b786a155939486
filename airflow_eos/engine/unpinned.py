"""Boundaries as pinned in the ledger, or as they would be pinned now; pins nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_eos.ledger import keys
from airflow_eos.ledger.records.boundary import Boundary
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.run.boundaries import Boundaries, Pinned, neighbours

if TYPE_CHECKING:
    from airflow_eos.ledger.authority import Authority
    from airflow_eos.model.kafka import TopicDescription


@dataclass(frozen=True, slots=True)
class Unpinned(Boundaries):
    """Reads pinned boundaries, and computes the others without pinning them.

    :param authority: reads pinned boundaries; None: all of them are computed.
    :ivar notes: which boundaries were computed.
    """

    authority: Authority | None
    notes: list[str] = field(default_factory=list)

    def boundary(
        self,
        topic: TopicDescription,
        moment: dt.datetime,
        lateness: dt.timedelta,
        *,
        accept_deleted: bool = False,
    ) -> Boundary:
        """Return the pinned boundary, or the one that would be pinned now."""
        key = keys.boundary_key(topic.topic, moment)
        pinned = self._known(topic.topic, key, neighbours(topic.topic, moment))
        if key in pinned:
            return self.known(topic, pinned[key], accept_deleted=accept_deleted)
        self.notes.append(f"{topic.topic}: the boundary at {keys.utc_text(moment)} is not pinned yet")
        near = Pinned(
            topic, moment, pinned, lambda: self._known(topic.topic, key, keys.boundary_prefix(topic.topic))
        )
        return self.compute(topic, moment, lateness, near, accept_deleted=accept_deleted)

    def _known(self, topic: str, key: str, prefix: str | Around) -> Mapping[str, LedgerValue]:
        if self.authority is None:
            return {}
        return self.authority.settle([key], routing=topic, prefixes=(prefix,))
