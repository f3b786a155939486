"""The additional steps of a run whose sink is a table: INTENT, PUBLISHED, settle.

Each step is one epoch: the small transaction of an INTENT, or of its tombstone, uses it up (law 2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_eos.run.states import State

if TYPE_CHECKING:
    from airflow_eos.ledger.records.intent import Intent
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.table import TableReceipt
    from airflow_eos.ports import ProducerSession
    from airflow_eos.run.commit_entry import CommitEntry
    from airflow_eos.run.endings import Endings
    from airflow_eos.run.kill import Kill
    from airflow_eos.run.states import Trace
    from airflow_eos.run.table_commits import TableCommits, TableEntry
    from airflow_eos.run.unit_of_work import UnitOfWork
    from airflow_eos.table_ports import TableWriter


class TableSteps:
    """Takes the steps. A method returns a record to answer with, or None: go on under a new epoch."""

    def __init__(self, tables: TableCommits, endings: Endings, trace: Trace, kill: Kill) -> None:
        self._tables = tables
        self._endings = endings
        self._trace = trace
        self._kill = kill

    def intent_of_others(self, work: UnitOfWork) -> Intent | None:
        """Return the INTENT of this id in the ledger, unless this process has pinned it."""
        intent = self._tables.open_intent(work.transactional_id)
        if intent is not None and intent.is_same(work.intent) and intent.key == work.key:
            return None
        work.intent = None
        return intent

    def look(self, work: UnitOfWork) -> None:
        """Load the table before reading; errors as :meth:`TableCommits.look`."""
        self._tables.look(work.earlier)

    def changes_table(self, work: UnitOfWork) -> bool:
        """Return whether the run adds rows to the table, or removes some."""
        return self._tables.changes(() if work.sealed is None else work.sealed.files)

    def writer(self, key: str) -> TableWriter:
        """Return the writer of the run's data files."""
        return self._tables.writer(key)

    def pin(self, work: UnitOfWork, entry: CommitEntry, session: ProducerSession) -> RunRecord | None:
        """Write the INTENT to the ledger. The next epoch reads it, and publishes.

        :raises OffsetsOutOfRange: see :meth:`TableCommits.refuse_fewer`; nothing is written then.
        """
        self._tables.refuse_fewer(work.recorded, entry.manifest)
        try:
            work.intent = self._tables.intent(entry, session, self._trace.steps)
            self._tables.pin(work.intent, work.transactional_id, session)
        except Exception as failure:  # noqa: BLE001 - as in any transaction of ours
            return self._endings.aborted(work, session, failure)
        self._trace.enter(State.INTENT)
        return self._endings.used_up(work, session)

    def publish(self, work: UnitOfWork) -> CommitEntry:
        """Add the rows to the table; return the run's commit.

        :raises RunFenced: a newer attempt owns the work; nothing of this one is in the table.
        """
        assert work.intent is not None
        self._kill.check()
        files = () if work.sealed is None else work.sealed.files
        receipt = self._tables.publish(work.intent, work.transactional_id, files)
        work.published = True
        self._trace.enter(State.PUBLISHED)
        return self._entry(work, work.intent, receipt)

    def without_rows(self, entry: CommitEntry) -> CommitEntry:
        """Return what the transaction of a run says that leaves the table as it is: its dead letters too."""
        due = self._tables.letters_due(entry.manifest)
        if due is None:
            return entry
        letters = self._endings.data.seal_letters(due)
        manifest = replace(entry.manifest, targets=letters.manifest.targets)
        return replace(entry, letters=letters, manifest=manifest)

    def settle(self, work: UnitOfWork, intent: Intent) -> CommitEntry | None:
        """Return the commit of an earlier attempt's INTENT; None if it is not published and never can be."""
        receipt = self._tables.settle(intent, work.transactional_id)
        if receipt is None:
            return None
        self._trace.enter(State.PUBLISHED)
        return self._entry(work, intent, receipt)

    def _entry(self, work: UnitOfWork, intent: Intent, receipt: TableReceipt) -> TableEntry:
        letters = None if intent.letters is None else self._endings.data.seal_letters(intent.letters)
        return self._tables.entry(intent, work.transactional_id, receipt, letters)

    def take_back(self, work: UnitOfWork, session: ProducerSession) -> RunRecord | None:
        """Take an INTENT back that can never be published any more."""
        try:
            self._tables.take_back(work.transactional_id, session)
        except Exception as failure:  # noqa: BLE001 - as in any transaction of ours
            return self._endings.aborted(work, session, failure)
        return self._endings.used_up(work, session)
