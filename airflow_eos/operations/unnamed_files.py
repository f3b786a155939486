"""What is looked for among the data files of a table: those of dead attempts, and the rows of a run."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


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
