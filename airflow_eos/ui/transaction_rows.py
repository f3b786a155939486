"""The open transactions, their pipelines, and who may see them."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.kafka import TransactionDescription, TransactionState
from airflow_eos.operations.checks import Check
from airflow_eos.operations.open_transactions import TransactionTimes, abort_command
from airflow_eos.ui.attempts import Attempt
from airflow_eos.ui.known_runs import KnownRuns
from airflow_eos.ui.viewer import Viewer
from airflow_eos.wording import counted

log = logging.getLogger(__name__)

MEANING: Mapping[TransactionState, str] = {
    TransactionState.ONGOING: "A run is at work, or was killed. Readers wait behind what it wrote.",
    TransactionState.PREPARE_COMMIT: "It is decided: it commits as soon as every leader has written the end.",
    TransactionState.PREPARE_ABORT: "It is decided: it aborts as soon as every leader has written the end.",
}
"""Explains the state of an open transaction."""
SECONDS_BESIDE = 1.0
"""Time that a page with other contents waits for all brokers to list open transactions."""
_OLD = 0.8
"""Share of its time-out from which an open transaction is a warning: runs take much less."""


@dataclass(frozen=True, slots=True)
class OpenNow:
    """Open transactions of the prefix, by transactional id.

    :param shown: transactions of records that the user may see, with the pipeline's name.
    :param shared: ids that may also belong to records that the user may not see.
    :param unrecorded: transactions without a pipeline in the ledger.
    :param unseen: why they are unknown; empty if they are known.
    """

    shown: Mapping[str, tuple[str, TransactionDescription]] = field(default_factory=dict)
    shared: Collection[str] = ()
    unrecorded: Mapping[str, TransactionDescription] = field(default_factory=dict)
    unseen: str = ""

    @classmethod
    def beside(cls, history: KnownRuns, viewer: Viewer, prefix: str) -> OpenNow:
        """Like :meth:`of`, for a page that also works without them."""
        try:
            return cls.of(history, viewer, prefix, seconds=SECONDS_BESIDE)
        except AuthorizationFailed as error:
            log.info("The page cannot list open transactions: %s", error)
            return cls(unseen="the page's principal may not list open transactions")
        except TimeoutError:
            return cls(unseen=f"a broker did not answer within {SECONDS_BESIDE:.0f} s")

    @classmethod
    def of(cls, history: KnownRuns, viewer: Viewer, prefix: str, *, seconds: float | None = None) -> OpenNow:
        """Query brokers and ledger; omits transactions of other users' records.

        :param seconds: time limit; None for that of the query.
        """
        records = [record for pipeline in history.pipelines.values() for record in pipeline.runs.values()]
        own = _owners((record for record in records if viewer.may_see(record)), prefix)
        others = _owners((record for record in records if not viewer.may_see(record)), prefix)
        shown, shared, unrecorded = {}, [], {}
        for name, status in history.open_transactions(seconds=seconds).items():
            is_of_others = bool(others(name))
            if pipeline := own(name):
                shown[name] = (pipeline, status)
                shared += [name] if is_of_others else []
            elif not is_of_others:
                unrecorded[name] = status
        return cls(shown, shared, unrecorded)

    def rows(
        self, viewer: Viewer, attempts: Iterable[Attempt], prefix: str, now: dt.datetime
    ) -> list[dict[str, Any]]:
        """Return the transactions that the user may see, sorted by transactional id.

        Before a pipeline's first commit its transaction belongs to the attempt with its group or name;
        without such an attempt only administrators see it. Partitions of a transaction without a record, or
        that may be another user's, are counted, not named, because its topics may be another user's.
        """
        rows = [_row(name, pipeline, status, now) for name, (pipeline, status) in self.shown.items()]
        groups = {(attempt.pipeline, attempt.group) for attempt in attempts if attempt.group}
        for name, status in self.unrecorded.items():
            pipeline = _pipeline_of(name, groups, prefix)
            if pipeline or viewer.is_admin:
                rows.append(_row(name, pipeline, status, now))
        for row in rows:
            if row["transactional_id"] in (*self.shared, *self.unrecorded):
                row["partitions"] = []
        return sorted(rows, key=lambda row: str(row["transactional_id"]))


def check_of(rows: Sequence[Mapping[str, Any]], unseen: str = "") -> Check:
    """Return the check of open transactions for *Health*."""
    name = "open transactions"
    if unseen:
        return Check(name, "unknown", f"not seen: {unseen}")
    if not rows:
        return Check(name, "ok", "none of the pipelines that you may see")
    oldest = max(rows, key=lambda row: row["age_seconds"] or 0)
    text = (
        f"{counted(len(rows), 'transaction')}, the oldest for {oldest['age_seconds']} s of "
        f"{oldest['timeout_seconds']} s"
    )
    if (oldest["share"] or 0) < _OLD:
        return Check(name, "ok", text)
    advice = f"readers wait behind it; where its task is gone for good: `{oldest['command']}`"
    return Check(name, "warn", text, advice)


def _row(name: str, pipeline: str, status: TransactionDescription, now: dt.datetime) -> dict[str, Any]:
    times = TransactionTimes.of(status, now)
    age = times.age_seconds
    return {
        "transactional_id": name,
        "pipeline": pipeline,
        **times.to_dict(),
        "state": status.state.value,
        "meaning": MEANING.get(status.state, ""),
        "producer_id": status.producer_id,
        "producer_epoch": status.producer_epoch,
        "share": None if age is None else min(1.0, age * 1000 / max(status.timeout_ms, 1)),
        "partitions": sorted(str(tp) for tp in status.partitions),
        "partition_count": len(status.partitions),
        # The page's own connection may only read.
        "command": abort_command(name, status.producer_epoch, CommandLine()),
    }


def _owners(records: Iterable[RunRecord], prefix: str) -> Callable[[str], str]:
    """Return a function that finds the pipeline with a transactional id; empty if there is none."""
    ids, groups = {}, set()
    for record in records:
        ids[record.producer.transactional_id] = record.pipeline
        groups.add((record.pipeline, record.group_id))
    return lambda name: ids.get(name) or _pipeline_of(name, groups, prefix)


def _pipeline_of(name: str, groups: Iterable[tuple[str, str]], prefix: str) -> str:
    """Return the first of these pipelines, each with its group, that has a transactional id; else empty."""
    matching = (pipeline for pipeline, group in groups if keys.belongs_to(name, prefix, pipeline, group))
    return min(matching, default="")
