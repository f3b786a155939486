"""Who remembers a ledger besides the ledger itself: a missing or empty topic may be one that was lost.

Three witnesses, none of which needs more permissions than a run has:

- The committed offsets of the run's group name the ledger they were committed beside. They expire with the
  group (``offsets.retention.minutes``).
- The transaction coordinator knows a transactional id that every run touches at its end,
  ``<prefix>.used-ledger.<topic>``; and the id under which the ledger's identity was committed, and the run's
  own one, which is fenced only in sight of a ledger. They expire when nobody uses them
  (``transactional.id.expiration.ms``).

What they say is evidence of a ledger. Their silence is evidence that there was none only until they expire.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_eos.exceptions import AuthorizationFailed, LedgerReplaced
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import TransactionDescription, TransactionState
from airflow_eos.model.spec import RunSpec
from airflow_eos.ports import Cluster

log = logging.getLogger(__name__)

_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


@dataclass(frozen=True, slots=True)
class Testimony:
    """What the witnesses say of a ledger that has no identity.

    :param of_a_ledger: who knows that there was one, and from what; empty: nobody.
    :param begun: somebody began to fix its identity and did not come to the commit.
    """

    of_a_ledger: str = ""
    begun: bool = False


class Witnesses:
    """Asks them about the ledger of a prefix.

    :param topic: the ledger's.
    :param spec: the run whose offsets and transactional id are asked for, too; None: there is none.
    """

    def __init__(self, cluster: Cluster, prefix: str, topic: str, spec: RunSpec | None = None) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._topic = topic
        self._spec = spec

    def agree(self, topic_id: str) -> None:
        """Check that the run's group committed its offsets beside this ledger, or that nobody remembers.

        :raises LedgerReplaced: it was another one.
        """
        for ledger, offset in self._ledgers_of_the_group().items():
            if ledger != topic_id:
                raise LedgerReplaced(
                    f"{offset} beside ledger {ledger}; the ledger {self._topic!r} is now {topic_id} "
                    "and knows nothing of what was committed there: it was deleted, re-created or is another "
                    "one. Restore it, or start over with a new group_id"
                )

    def testify(self) -> Testimony:
        """Say whether there was a ledger.

        To be asked before a look-up: a ledger that was kept then holds what is known here.
        """
        for ledger, offset in self._ledgers_of_the_group().items():
            return Testimony(f"{offset} beside ledger {ledger}")
        used = keys.ledger_witness_id(self._prefix, self._topic)
        if self._seen(used):
            return Testimony(f"runs have used it (transactional id {used})")
        pinning = keys.ledger_transactional_id(self._prefix, self._topic)
        pin = self._transaction(pinning)
        if pin is not None and pin.state in _COMMITTED:
            return Testimony(f"its identity was committed (transactional id {pinning})")
        if self._spec is not None:
            own = keys.transactional_id(self._spec)
            if self._transaction(own) is not None:
                return Testimony(f"this work was begun beside it (transactional id {own})")
        return Testimony(begun=pin is not None)

    def _seen(self, transactional_id: str) -> bool:
        """Return whether the coordinator knows an id that this principal needs for nothing else."""
        try:
            return self._transaction(transactional_id) is not None
        except AuthorizationFailed as refused:
            log.warning("One witness of a lost ledger cannot be asked: %s", refused)
            return False

    def _transaction(self, transactional_id: str) -> TransactionDescription | None:
        return self._cluster.describe_transaction(transactional_id)

    def _ledgers_of_the_group(self) -> dict[str, str]:
        """Return the ledgers that the group's offsets name, with the offset that names each."""
        if self._spec is None:
            return {}
        group = keys.offsets_group(self._spec)
        found: dict[str, str] = {}
        # Not the stable ones: other runs of the group may be committing theirs, and these tell as much.
        for tp, offset in sorted(self._cluster.committed(group, None, stable=False).items()):
            ledger = keys.metadata_ledger(offset.metadata)
            if ledger is not None and tp.topic in self._spec.source_topics:
                found[ledger] = f"group {group!r} committed offset {offset.offset} of {tp}"
        return found
