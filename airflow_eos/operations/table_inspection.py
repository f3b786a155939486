"""Base class for inspecting a table and its storage; changes nothing except for its own test file."""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_eos.exceptions import ConfigurationError, EosError
from airflow_eos.ledger import keys
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.table import PublishedRuns, TableReceipt
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.redaction import redacted
from airflow_eos.wording import counted, some_of

RunKeys = Callable[[], Mapping[str, str]]
"""Returns the run keys of the ledger by their digest; called only if attempts left files or rows."""


@dataclass(frozen=True, slots=True)
class UnnamedFile:
    """A data file of one of our runs that no snapshot of the table names.

    :param path: path below the folder of the table's data files.
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
    """The current contents of the data files that a run's commit added.

    :param files: number of data files that the commit added.
    :param rows: number of rows by the files' footers.
    :param missing: names, without folder, of live files that are not in the storage.
    :param removed: number of files that a later commit removed and that are deleted.
    :param undone: whether the table was rolled back to before the commit.
    """

    files: int
    rows: int
    missing: tuple[str, ...] = ()
    removed: int = 0
    undone: bool = False


class TableInspection(ABC):
    """Inspects one version of a table.

    :param properties: properties of catalog and storage; their values are kept out of messages.
    :cvar REMOVAL: the operation that deletes files that no commit names.
    """

    REMOVAL: ClassVar[str]

    def __init__(self, sink: SinkTable, table: Any, properties: Mapping[str, Any]) -> None:
        self._name = f"table {sink}"
        self._table = table
        self._properties = properties
        self._own_file = f".airflow-eos-doctor-{uuid.uuid4()}"  # not the name of a data file

    @abstractmethod
    def checks(self, run_keys: RunKeys) -> Iterator[Check]:
        """Check that runs can write the table, and list leftovers of dead attempts."""

    @abstractmethod
    def rows_of(self, receipt: TableReceipt, run_key: str, in_time: Callable[[], None]) -> HeldRows | None:
        """Return the contents of the data files that a run's commit added; None if the commit was expired.

        :param in_time: raises when there is no time left; called before each file.
        """

    @abstractmethod
    def _write_file(self) -> None:
        """Write a small file next to the data files."""

    @abstractmethod
    def _delete_file(self) -> None:
        """Delete the small file."""

    @abstractmethod
    def _unnamed(self) -> Iterable[UnnamedFile] | None:
        """Return the data files of runs that no commit names; None if the storage cannot be listed."""

    def reason(self, error: Exception) -> str:
        """Return the text of an error without the values of the properties."""
        return redacted(f"{type(error).__name__}: {error}", self._properties)

    def _refusal(self, act: Callable[[], object]) -> str:
        """Return why catalog or storage refuse a call; empty if they do not."""
        try:
            act()
        except EosError:
            raise
        except Exception as error:  # noqa: BLE001 - of any catalog, of any storage
            return self.reason(error)
        return ""

    def _right(self, objects: str, system: str, act: Callable[[], object], taken: str) -> Check:
        refusal = self._refusal(act)
        if not refusal:
            return Check(f"{self._name} {objects}", "ok", f"{system} took {taken}")
        advice = f"give the connection's principal the right to change the table, then to write its {objects}"
        return Check(f"{self._name} {objects}", "fail", f"{system} refused: {refusal}", advice)

    def _files_check(self) -> Check:
        """Check that the storage accepts a small file; runs do not need the right to delete it."""
        check = self._right("files", "the storage", self._write_file, "a file, which is deleted again")
        kept = self._refusal(self._delete_file) if check.status == "ok" else ""
        if not kept:
            return check
        return Check(
            check.name,
            "warn",
            f"the storage took a file, and did not delete it again: {kept}",
            "runs need no right to delete; remove the file (.airflow-eos-doctor-...) with the orphan files",
        )

    def _unnamed_check(self, run_keys: RunKeys) -> Check:
        """Report the data files that no commit of the table names."""
        subject, files = f"{self._name} unnamed files", self._unnamed()
        if files is None:
            return Check(subject, "unknown", "files of this storage cannot be listed")
        by_label: dict[str, list[UnnamedFile]] = defaultdict(list)
        for file in sorted(files, key=lambda file: file.path):
            by_label[file.label].append(file)
        if not by_label:
            return Check(subject, "ok", "each data file of a run is named by a snapshot")
        labels = run_keys()
        shown = [_attempt(label, of_run, labels) for label, of_run in by_label.items()]
        advice = (
            "attempts that died left them, or a run at work has not published them yet; "
            f"{self.REMOVAL} deletes old ones"
        )
        return Check(subject, "warn", some_of(shown, 10), advice)


def _attempt(label: str, files: Sequence[UnnamedFile], run_keys: Mapping[str, str]) -> str:
    moments = [file.modified for file in files if file.modified is not None]
    since = f", the last of {keys.utc_text(max(moments))}" if moments else ""
    size = sum(file.size for file in files)
    of_run = run_of_label(label, run_keys)
    return f"{counted(len(files), 'file')} ({size:,} bytes{since}) of {of_run}: {files[0].path}"


def run_of_label(label: str, run_keys: Mapping[str, str]) -> str:
    """Return the run whose key has this digest, for messages."""
    return run_keys.get(label, f"a run that the ledger does not hold (digest {label})")


def fencing_tokens(name: str, texts: Iterable[str]) -> Check:
    """Check that a table's entries of the last published runs are readable; ``texts`` has one per group."""
    subject = f"{name} fencing tokens"
    try:
        published = [PublishedRuns.from_json(text) for text in texts]
    except ConfigurationError as error:
        return Check(subject, "fail", error_line(error))
    groups, runs = len(published), sum(len(runs.runs) for runs in published)
    return Check(subject, "ok", f"readable; {counted(groups, 'consumer group')}, {counted(runs, 'run')}")
