"""Evidence of an earlier ledger outside the ledger topic: a missing or empty topic may be one that was lost.

The witnesses need no more permissions than a run has:

- The committed offsets of the run's group name the ledger that they were committed with. They expire with the
  group (``offsets.retention.minutes``).
- The transaction coordinator knows the transactional id that every run initialises at its end,
  ``<prefix>.used-ledger.<topic>``; the id under which the ledger's identity was committed; and the run's own
  id, which a run fences only after it has seen a ledger. Unused ids expire
  (``transactional.id.expiration.ms``).

A witness proves that there was a ledger. The absence of witnesses proves that there was none only until they
expire.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_eos.exceptions import AuthorizationFailed, LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TransactionState
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster

log = logging.getLogger(__name__)

_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


@dataclass(frozen=True, slots=True)
class Testimony:
    """The evidence about a ledger that is missing or has no identity.

    :param of_a_ledger: the witness that proves that there was one, for errors; empty if none does.
    :param begun: a task began to pin the identity and did not commit.
    """

    of_a_ledger: str = ""
    begun: bool = False


@dataclass(eq=False)
class Witnesses:
    """Collects evidence about the ledger of a prefix.

    :param spec: the run whose offsets and transactional id are checked too; None for no run.
    """

    cluster: Cluster
    prefix: str
    topic: str
    spec: RunSpec | None = None

    def agree(self, topic_id: str) -> None:
        """Check that the offsets of the run's group, if any, were committed with this ledger.

        :raises LedgerReplaced: they were committed with another ledger.
        """
        for ledger, offset in self._ledgers_of_the_group().items():
            if ledger != topic_id:
                raise LedgerReplaced(
                    f"{offset} beside ledger {ledger}; the ledger {self.topic!r} is now {topic_id} "
                    "and knows nothing of what was committed there: it was deleted, re-created or is another "
                    "one, or MirrorMaker copied the offsets from another cluster (exclude the group from "
                    "sync.group.offsets). Restore it, or start over with a new group_id"
                )

    def testify(self) -> Testimony:
        """Return whether there was a ledger.

        Call it before a look-up: a ledger that still exists has the records of everything found here.
        """
        for ledger, offset in self._ledgers_of_the_group().items():
            return Testimony(
                f"{offset} beside ledger {ledger} (of another environment? Then give this pipeline a "
                "group_id of its own)"
            )
        used = keys.ledger_witness_id(self.prefix, self.topic)
        if self._is_known(used):
            return Testimony(f"runs have used it (transactional id {used})")
        pinning = keys.ledger_transactional_id(self.prefix, self.topic)
        pin = self.cluster.describe_transaction(pinning)
        if pin is not None and pin.state in _COMMITTED:
            return Testimony(f"its identity was committed (transactional id {pinning})")
        if self.spec is not None:
            own = keys.transactional_id(self.spec)
            if self.cluster.describe_transaction(own) is not None:
                return Testimony(f"this work was begun beside it (transactional id {own})")
        return Testimony(begun=pin is not None)

    def _is_known(self, transactional_id: str) -> bool:
        """Return whether the coordinator knows an id; False if this principal may not Describe it."""
        try:
            return self.cluster.describe_transaction(transactional_id) is not None
        except AuthorizationFailed as refused:
            log.warning("Cannot check one sign of a lost ledger: %s", refused)
            return False

    def _ledgers_of_the_group(self) -> dict[str, str]:
        """Return the topic ids of ledgers in the metadata of the group's offsets, with a text for errors."""
        if self.spec is None:
            return {}
        group = keys.offsets_group(self.spec)
        ledgers: dict[str, str] = {}
        # Not require_stable: other runs of the group may hold pending offsets, and the last committed ones
        # suffice.
        for tp, offset in sorted(self.cluster.committed(group, None, stable=False).items()):
            ledger = keys.metadata_ledger(offset.metadata)
            if ledger is not None and tp.topic in self.spec.source_topics:
                ledgers[ledger] = f"group {group!r} committed offset {offset.offset} of {tp}"
        return ledgers
