"""The doctor's check for commits of other writers to a table, and their effect on runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_eos.operations.checks import Check
from airflow_eos.wording import counted, moment_text, some_of

RECENT = 100
"""Number of a table's last commits that are checked."""


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit that no run made.

    :param operation: name of the operation in the table's format.
    :param writer: engine and application, as far as the commit names them.
    :param removes: whether it removed data files or rows, or may have.
    :param timestamp: ms since 1970.
    """

    operation: str
    writer: str
    removes: bool
    timestamp: int


def other_writers(name: str, number: int, foreign: Sequence[ForeignCommit]) -> Check:
    """Check whether others have removed or rewritten rows; after their appends a run only re-reads the table.

    :param number: number of checked commits, including those of runs.
    """
    subject = f"{name} other writers"
    commits = counted(number, "commit")
    if not foreign:
        return Check(subject, "ok", f"none in the last {commits}")
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for commit in foreign:
        groups[commit.operation, commit.writer].append(commit.timestamp)
    shown = [
        f"{len(times)} x {operation} by {writer or 'a writer without a name'}, last {moment_text(max(times))}"
        for (operation, writer), times in groups.items()
    ]
    finding = f"in the last {commits}, beside runs: {some_of(shown, 10)}"
    if not any(commit.removes for commit in foreign):
        return Check(subject, "ok", f"{finding}. Each costs a run at work another look at the table")
    return Check(
        subject,
        "warn",
        finding,
        "no run writes a row twice because of these. Rows that were rewritten or deleted cannot be replaced "
        "by a reprocessing (TableRewritten): compact only what is not reprocessed any more, or use "
        "reprocess='append'. For the ledger, rows that a rollback or RESTORE removed are published: "
        "reprocess those runs",
    )


def writer_text(engine: str, application: str) -> str:
    """Return engine and application of a commit, as far as it names them."""
    parts = (engine, f"application {application}" if application else "")
    return ", ".join(part for part in parts if part)
