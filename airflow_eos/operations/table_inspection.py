"""What a table and its storage tell an administrator, and the doctor's check of its fencing tokens."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.exceptions import ConfigurationError, EosError
from airflow_eos.model.table import PublishedRuns
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.redaction import redacted
from airflow_eos.wording import counted


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


def fencing_tokens(name: str, texts: Iterable[str]) -> Check:
    """Check that what a table knows of the runs that published last can be read; a text for each group."""
    subject = f"{name} fencing tokens"
    try:
        published = [PublishedRuns.from_json(text) for text in texts]
    except ConfigurationError as error:
        return Check(subject, "fail", error_line(error))
    groups, runs = len(published), sum(len(runs.runs) for runs in published)
    return Check(subject, "ok", f"readable; {counted(groups, 'consumer group')}, {counted(runs, 'run')}")
