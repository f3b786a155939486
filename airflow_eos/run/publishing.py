"""Publishes a run's rows in a table: once, with any number of attempts and other writers of the table.

Kafka cannot fence the table, and its catalog knows no producers. Three things replace that:

- The INTENT in the ledger, written after the fence, says what is about to be published. An attempt that finds
  one of its id first settles it.
- The table's commit is a compare-and-set on the version that was read. If another commit comes between, the
  table is read again.
- That refuses a stale base, not a stale attempt. So the commit sets a fencing token for the transactional id
  in a property of the table. An attempt that sees a higher token than its own never publishes.

An INTENT that is not published is *barred* before it is taken back: an append of no files that sets a higher
token. Afterwards the attempt that wrote the INTENT can no longer publish. An INTENT is therefore replaced
only if its rows are in the table, or can never be.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_eos.exceptions import (
    AuthorizationFailed,
    ConfigurationError,
    EosError,
    OutcomeUnknown,
    RunFenced,
    TableChanged,
    TableReplaced,
    UnknownTable,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.table import (
    DataFileMade,
    EarlierRows,
    PublishedRun,
    TableCommit,
    TableLayout,
    TableReceipt,
)
from airflow_eos.run.replacing import file_label
from airflow_eos.table_ports import TableMoved, TableSink, TableVersion

log = logging.getLogger(__name__)

MAX_LOOKS = 60
"""Attempts to commit before a run gives up; a retry follows a concurrent commit of others, or an error."""
RUN_KEY = "eos.run-key"
"""Property in the summary of each commit: the key of the run that made it."""
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Claim:
    """One INTENT's claim to a table.

    :param scope: the key of the transactional id in the table's property.
    :param lasting: see :class:`~airflow_eos.model.table.PublishedRun`.
    :param dismissal: the command that dismisses the INTENT.
    :param replaces: rows that its commit removes; a bar removes none.
    """

    key: str
    scope: str
    token: int
    layout: TableLayout
    lasting: bool
    summary: tuple[tuple[str, str], ...] = ()
    dismissal: str = ""
    replaces: tuple[EarlierRows, ...] = ()

    @classmethod
    def of(cls, intent: Intent, transactional_id: str, branch: str | None, dismissal: str) -> Claim:
        """Return the claim of an INTENT."""
        record = intent.record
        replaced = ",".join(str(rows.snapshot) for rows in intent.replaces)
        return cls(
            key=intent.key,
            scope=keys.table_scope(transactional_id, branch),
            token=intent.token,
            layout=intent.layout,
            lasting=keys.is_cursor_id(transactional_id),
            summary=(
                (RUN_KEY, record.run_key),
                ("eos.pipeline", record.pipeline),
                ("eos.run-id", record.run_id),
                (
                    "eos.ranges",
                    json.dumps([wanted.to_list() for wanted in record.ranges], separators=(",", ":")),
                ),
                *((("eos.replaces", replaced),) if replaced else ()),
            ),
            dismissal=dismissal,
            replaces=intent.replaces,
        )


@dataclass(eq=False)
class Publisher:
    """Publishes or bars claims.

    :param committed: returns which of some run keys have committed records in the ledger.
    """

    table: TableSink
    committed: Callable[[Sequence[str]], frozenset[str]]
    sleep: Callable[[float], None] = time.sleep

    def publish(self, claim: Claim, files: Sequence[DataFileMade]) -> TableReceipt:
        """Append a run's data files, unless an earlier commit of the claim has.

        :raises RunFenced: a newer attempt has barred the claim, or committed the run.
        :raises TableChanged: the files do not fit the table as it is.
        :raises TableReplaced: it is another table.
        :raises TableRewritten: the rows to replace are not there as they were written.
        :raises OutcomeUnknown: the catalog did not report the outcome; a retry settles it.
        """

        def append(version: TableVersion, over: frozenset[str]) -> TableReceipt:
            if token_is_stale(version, claim):
                raise RunFenced(
                    f"{claim.key}: a newer attempt has published or barred a run in {self.table.name}; "
                    "nothing of this one is in the table"
                )
            if claim.key in over:
                raise RunFenced(f"{claim.key} was committed by a newer attempt; a retry returns its record")
            if version.layout != claim.layout:
                raise TableChanged(
                    f"{self.table.name}: schema or partition spec changed after the run's data files were "
                    f"written ({claim.layout} then, {version.layout} now); nothing was published, the next "
                    "try writes for the table as it is"
                )
            own = PublishedRun(claim.key, claim.token, TableReceipt(0, 0, 0), claim.lasting)
            return self._commit(version, claim, own, files, over)

        try:
            receipt = self._until_decided(claim, append)
        except ConfigurationError as error:  # the run loaded the table before: a password was changed since
            raise OutcomeUnknown(
                f"{claim.key}: {self.table.name} is no longer reached, and it is not known whether it has "
                f"the run's rows: {error.message}. A retry, with what the connection says then, finds out"
            ) from None
        assert receipt is not None
        return receipt

    def settle(self, claim: Claim) -> TableReceipt | None:
        """Return what a claim published; None after barring it. The caller holds the fence.

        :raises TableReplaced: it is another table.
        :raises OutcomeUnknown: the catalog did not report the outcome; a retry settles it.
        """

        def bar(version: TableVersion, over: frozenset[str]) -> None:
            if token_is_stale(version, claim):
                return
            own = PublishedRun(claim.key, claim.token + 1, None, claim.lasting)
            self._commit(version, claim, own, (), over)
            log.info(
                "%s: an earlier attempt at %s can no longer publish",
                self.table.name,
                claim.key,
            )

        return self._until_decided(claim, bar)

    def _until_decided(
        self, claim: Claim, act: Callable[[TableVersion, frozenset[str]], TableReceipt | None]
    ) -> TableReceipt | None:
        problem: Exception | None = None
        for look in range(MAX_LOOKS):
            if look:
                self.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.02 * 2**look)))
            try:
                version = self._load(claim)
                self._refuse_another(version, claim)
                receipt = published_by(version, claim)
                if receipt is not None:
                    return receipt
                # After the load: a run that was removed from the table's property was committed before that.
                others = [run.key for run in version.published.runs.values() if not run.lasting]
                return act(version, self.committed([claim.key, *others]))
            except TableMoved as moved:
                log.info(
                    "%s: nothing was published, the table is looked at again: %s", self.table.name, moved
                )
                problem = moved
            except OutcomeUnknown as unknown:
                log.warning("%s", unknown)
                problem = unknown
            except (EosError, ImportError):  # a package lacks what is used here: no request was sent
                raise
            except Exception as error:  # noqa: BLE001 - whatever it was, the table shows the outcome
                log.warning("%s: the commit's outcome is not known (%s); reloading", self.table.name, error)
                problem = error
        raise OutcomeUnknown(
            f"{claim.key}: {self.table.name} did not take the run's commit in {MAX_LOOKS} tries, and it is "
            f"not known whether a later look would find it: {problem}. A retry finds out"
        ) from problem

    def _load(self, claim: Claim) -> TableVersion:
        try:
            return self.table.load()
        except (AuthorizationFailed, UnknownTable):
            # It may have the rows nevertheless, such as when its format was upgraded after them.
            version = self.table.load(to_write=False)
            if version.layout.uuid != claim.layout.uuid or published_by(version, claim) is None:
                raise
            return version

    def _refuse_another(self, version: TableVersion, claim: Claim) -> None:
        if version.layout.uuid != claim.layout.uuid:
            raise TableReplaced(
                f"{self.table.name} had the id {claim.layout.uuid} when {claim.key} was about to publish in "
                f"it, and has {version.layout.uuid} now: it was dropped and recreated, or the connection "
                f"leads to another. Restore table or connection; if the table is lost: {claim.dismissal}"
            )

    def _commit(
        self,
        version: TableVersion,
        claim: Claim,
        own: PublishedRun,
        files: Sequence[DataFileMade],
        over: frozenset[str],
    ) -> TableReceipt:
        summary = {**dict(claim.summary), "eos.scope": claim.scope, "eos.token": str(own.token)}
        if own.receipt is None:
            summary["eos.barred"] = "true"
        change = TableCommit(
            scope=claim.scope,
            published=version.published.with_run(claim.scope, own, over),
            files=tuple(files),
            replaces=rows_taken_out(claim, own),
            summary=summary,
            label=file_label(claim.key),
        )
        return self.table.commit(version, change)


def rows_taken_out(claim: Claim, own: PublishedRun) -> tuple[EarlierRows, ...]:
    """Return the rows that a commit removes; a bar removes none."""
    return () if own.receipt is None else claim.replaces


def published_by(version: TableVersion, claim: Claim) -> TableReceipt | None:
    """Return the receipt of the claim's rows; None if they are not in the table."""
    own = version.published.runs.get(claim.scope)
    if own is not None and (own.key, own.token) == (claim.key, claim.token):
        return own.receipt
    return version.snapshot_of(claim.scope, claim.token)


def token_is_stale(version: TableVersion, claim: Claim) -> bool:
    """Return whether the table has a higher token of the claim's id; then the claim publishes nothing."""
    own = version.published.runs.get(claim.scope)
    return own is not None and own.token > claim.token
