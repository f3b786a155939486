"""What a table and its storage tell an administrator, and the doctor's checks of it. Nothing is committed."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import ConfigurationError, EosError
from airflow_eos.model.table import PublishedRuns
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.redaction import redacted
from airflow_eos.wording import counted, moment_text, some_of, span_text

RECENT = 100
"""Commits that are looked at: the last ones of a table."""
SHORT = dt.timedelta(days=1)
"""Within it a task is usually retried, and a failed one cleared."""
_MOST_SECONDS = 86_399_999_999_999
"""What a ``timedelta`` holds: 9223372036854775807 ms, the largest number of Java, means for ever."""
_PART = re.compile(r"(\d+)\s*(week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?\b")
_SECONDS = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}


@dataclass(frozen=True, slots=True)
class UnnamedFile:
    """A data file of a run of ours that no snapshot of the table names.

    :param path: below the folder of the table's data files.
    :param label: digest of the run key, see :func:`~airflow_eos.run.replacing.file_label`.
    :param size: bytes.
    :param modified: None if the storage does not say.
    """

    path: str
    label: str
    size: int
    modified: dt.datetime | None


@dataclass(frozen=True, slots=True)
class HeldRows:
    """What the data files hold now that a run's commit added.

    :param files: number of data files that the commit added.
    :param rows: by the files' own footers.
    :param missing: names of files that the table has and the storage has not, without their folder.
    :param removed: number of files that a later commit has taken out, and that are deleted.
    :param undone: whether the commit is none of the table's any more: it was set back behind it.
    """

    files: int
    rows: int
    missing: tuple[str, ...] = ()
    removed: int = 0
    undone: bool = False


class TableInspection:
    """Looks at one version of a table; commits and removes nothing but a file of its own.

    :param properties: of catalog and storage; their values are kept out of messages.
    """

    def __init__(self, table: Any, properties: Mapping[str, Any]) -> None:
        self._table = table
        self._properties = properties
        self._own_file = f".airflow-eos-doctor-{uuid.uuid4()}"  # not the name of a data file

    def reason(self, error: Exception) -> str:
        """Return the text of an error without the values of the properties."""
        return redacted(f"{type(error).__name__}: {error}", self._properties)

    def _refusal(self, act: Callable[[], object]) -> str:
        """Return why catalog or storage refuse something; empty if they do not."""
        try:
            act()
        except EosError:
            raise
        except Exception as error:  # noqa: BLE001 - of any catalog, of any storage
            return self.reason(error)
        return ""

    def _file_refusals(self, write: Callable[[], object], delete: Callable[[], object]) -> tuple[str, str]:
        """Return why the storage refuses a small file, and why to delete it again."""
        refused = self._refusal(write)
        return refused, "" if refused else self._refusal(delete)


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit that no run made.

    :param operation: in the words of the table's format.
    :param writer: engine and application, as far as the commit names them.
    :param removes: whether it removed data files or rows, or may have.
    :param timestamp: ms since 1970.
    """

    operation: str
    writer: str
    removes: bool
    timestamp: int


def fencing_tokens(name: str, texts: Iterable[str]) -> Check:
    """Check that what a table knows of the runs that published last can be read; a text for each group."""
    subject = f"{name} fencing tokens"
    try:
        published = [PublishedRuns.from_json(text) for text in texts]
    except ConfigurationError as error:
        return Check(subject, "fail", error_line(error))
    groups, runs = len(published), sum(len(runs.runs) for runs in published)
    return Check(subject, "ok", f"readable; {counted(groups, 'consumer group')}, {counted(runs, 'run')}")


def other_writers(name: str, number: int, foreign: Sequence[ForeignCommit]) -> Check:
    """Check whether others have removed or rewritten rows; appends of others cost a run a look.

    :param number: of the last commits that were looked at, those of runs included.
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
    """Return who made a commit, as far as it says."""
    parts = (engine, f"application {application}" if application else "")
    return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long maintenance keeps something.

    :param kept: what it keeps, in words.
    :param span: None: a value that cannot be read.
    :param source: property, or recorded command, that says so.
    :param need: what runs lose where it is removed too early.
    """

    kept: str
    span: dt.timedelta | None
    source: str
    need: str


def retention_check(subject: str, retention: Retention) -> Check:
    """Check that something is kept for longer than retries reach."""
    if retention.span is None:
        return Check(subject, "unknown", f"{retention.source} is not a span of time")
    finding = f"{retention.kept} are kept for {span_text(retention.span)} ({retention.source})"
    if retention.span >= SHORT:
        return Check(subject, "ok", finding)
    return Check(subject, "warn", finding, f"raise it to more than {span_text(SHORT)}: {retention.need}")


def interval(text: str) -> dt.timedelta | None:
    """Return a span as Delta Lake's properties have it, as ``interval 1 day``; None if it is not one."""
    parts = _PART.findall(text.lower())
    if not parts or _PART.sub("", text.lower().removeprefix("interval")).strip():
        return None
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    return dt.timedelta(seconds=min(seconds, _MOST_SECONDS))


def milliseconds(text: str) -> dt.timedelta | None:
    """Return a span as Iceberg's properties have it: a number of ms; None if it is not one."""
    return dt.timedelta(milliseconds=min(int(text), 1000 * _MOST_SECONDS)) if text.isdecimal() else None
