"""Values of a table that is a sink: its layout, its notes about runs, receipts, data files, commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.versioned import JsonForm, integer, text

PUBLISHED_VERSION = 1
PublishedState = Literal["published", "barred"]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Identifies table, schema and partition spec that data files are written for; others refuse them.

    :param uuid: a table that is dropped and created again has another UUID.
    """

    uuid: str
    schema_id: int
    spec_id: int


@dataclass(frozen=True, slots=True)
class TableReceipt(JsonForm):
    """The rows and files that a run appended, by the table's commit.

    :param snapshot: id of the table's snapshot.
    """

    snapshot: int
    files: int
    rows: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TableReceipt:
        """Read the JSON form."""
        return cls(integer(data["snapshot"]), integer(data["files"], 0), integer(data["rows"], 0))


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """Rows of a run's earlier commit that a reprocessing removes.

    :param receipt: the receipt of that commit.
    :param label: first part of the names of its data files.
    """

    receipt: TableReceipt
    label: str

    @property
    def snapshot(self) -> int:
        """Id of the commit's snapshot."""
        return self.receipt.snapshot

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**self.receipt.to_dict(), "label": self.label}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EarlierRows:
        """Read the JSON form; versions before labels wrote it for Iceberg alone, which needs none."""
        return cls(TableReceipt.from_dict(data), text(data.get("label", "")))


@dataclass(frozen=True, slots=True)
class DataFileMade:
    """A data file that a task wrote; no reader sees it before it is published.

    :param data: the sink's own description of the file, for the table's commit.
    :param size: bytes.
    """

    data: bytes = field(repr=False)
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A table's latest note about a transactional id.

    :param key: key of the run that published, or was barred.
    :param token: fencing token; a commit with a lower token of the same id is refused.
    :param receipt: None where a run was barred.
    :param lasting: keep the note forever, as for a cursor, whose next run has the same id. Other notes
        are removed once the ledger has their run.
    """

    key: str
    token: int
    receipt: TableReceipt | None
    lasting: bool

    @property
    def state(self) -> PublishedState:
        """Whether the run published, or never can."""
        return "barred" if self.receipt is None else "published"


@dataclass(frozen=True, slots=True)
class PublishedRuns:
    """The notes of a table about a pipeline's runs, set in the same commits that append their rows.

    :param runs: by the scope of the transactional id (:func:`~airflow_eos.ledger.keys.table_scope`).
    """

    runs: Mapping[str, PublishedRun] = field(default_factory=dict)

    def with_run(self, scope: str, run: PublishedRun, over: frozenset[str] = frozenset()) -> PublishedRuns:
        """Return the notes with that of one run.

        :param over: keys of runs that the ledger has; their notes that do not last are removed.
        """
        kept = {name: entry for name, entry in self.runs.items() if entry.lasting or entry.key not in over}
        return replace(self, runs={**kept, scope: run})

    def to_json(self) -> str:
        """Return the versioned JSON form."""
        runs = {
            scope: {
                "key": entry.key,
                "token": entry.token,
                "lasting": entry.lasting,
                **({} if entry.receipt is None else entry.receipt.to_dict()),
            }
            for scope, entry in sorted(self.runs.items())
        }
        return json.dumps({"v": PUBLISHED_VERSION, "runs": runs}, separators=(",", ":"))

    @classmethod
    def from_json(cls, value: str | None) -> PublishedRuns:
        """Read the JSON form; None: no run of the pipeline has published.

        :raises ConfigurationError: a newer version of this package, or another program, wrote it.
        """
        if value is None:
            return cls()
        try:
            data = json.loads(value)
            runs = {text(scope): _run(entry) for scope, entry in _known_version(data)["runs"].items()}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the table's property about runs cannot be read ({error}): upgrade airflow-eos where a "
                "newer one writes the table, or find out who changed the property; nothing was written"
            ) from error
        return cls(runs)


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The changes of one commit to a table, and the notes that it sets.

    :param scope: scope of the run's transactional id.
    :param published: the notes about the pipeline's runs, without the receipt of this run.
    :param files: data files that it appends.
    :param replaces: rows of the run's earlier commits that it removes.
    :param summary: summary of the commit, for people.
    :param label: first part of the names of the run's data files.
    """

    scope: str
    published: PublishedRuns
    files: tuple[DataFileMade, ...] = ()
    replaces: tuple[EarlierRows, ...] = ()
    summary: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    @property
    def run(self) -> PublishedRun:
        """The note about this run."""
        return self.published.runs[self.scope]

    def receipt(self, snapshot: int) -> TableReceipt:
        """Return the receipt for the data files, by the id that the table gave to the commit."""
        return TableReceipt(snapshot, len(self.files), sum(file.rows for file in self.files))

    def published_with(self, receipt: TableReceipt) -> PublishedRuns:
        """Return the notes about the pipeline's runs with the receipt; a bar has none."""
        if self.run.receipt is None:
            return self.published
        return self.published.with_run(self.scope, replace(self.run, receipt=receipt))


def _known_version(data: Mapping[str, Any]) -> Mapping[str, Any]:
    if data["v"] != PUBLISHED_VERSION:
        raise ValueError(f"version {data['v']!r}, this airflow-eos reads {PUBLISHED_VERSION}")
    return data


def _run(data: Mapping[str, Any]) -> PublishedRun:
    receipt = TableReceipt.from_dict(data) if "snapshot" in data else None
    return PublishedRun(text(data["key"]), integer(data["token"], 0), receipt, bool(data["lasting"]))
