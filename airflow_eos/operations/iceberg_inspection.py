"""Inspects an Iceberg table and its storage for administrators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID

from airflow_eos.model.iceberg_table import MAIN, IcebergTable
from airflow_eos.model.table import TableReceipt
from airflow_eos.operations.checks import Check
from airflow_eos.operations.foreign_commits import RECENT, ForeignCommit, other_writers, writer_text
from airflow_eos.operations.table_inspection import (
    HeldRows,
    RunKeys,
    TableInspection,
    UnnamedFile,
    fencing_tokens,
)
from airflow_eos.operations.table_retention import milliseconds, retention_check
from airflow_eos.run.publishing import RUN_KEY

PROPERTY = re.compile(r"eos\.[0-9a-f]+")
"""Names of the table properties that list the last published runs."""
_APPLICATION = ("app-id", "spark.app.id", "flink.job-id", "trino_query_id")
"""Names under which engines identify themselves in the summary of a snapshot."""
_MAX_AGE, _DEFAULT_AGE_MS = "history.expire.max-snapshot-age-ms", "432000000"
_MAX_REF_AGE = "history.expire.max-ref-age-ms"
_PICKED = "source-snapshot-id"
"""In the summary of a snapshot: the one that ``cherrypick_snapshot`` has copied."""
_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"
_METADATA_KEPT = "write.metadata.previous-versions-max"
_SAFE_METADATA = 10
"""Commits that others may make between the catalog's answer and the read of the metadata file it names."""
# Counter and task of the writer, the digest of the run key, a random part.
_FILE = re.compile(r"\d+-\d+-(?P<label>[0-9a-f]{20})-[0-9a-f-]{36}[-.\d]*\.parquet")


class IcebergInspection(TableInspection):
    """Inspects one version of a table."""

    REMOVAL = "Iceberg's remove_orphan_files"

    _table: Table

    def __init__(self, sink: IcebergTable, version: Any) -> None:
        properties = {**version.table.io.properties, **(sink.properties or {})}
        super().__init__(sink, version.table, properties)
        self._branch = sink.branch or MAIN

    def checks(self, run_keys: RunKeys) -> Iterator[Check]:
        """See :class:`~airflow_eos.operations.table_inspection.TableInspection`."""
        metadata = self._table.metadata
        yield Check(self._name, "ok", f"there, format version {metadata.format_version}, Parquet")
        yield self._right("commits", "the catalog", self._commit_nothing, "a commit that changes nothing")
        yield self._files_check()
        properties = sorted(metadata.properties.items())
        yield fencing_tokens(self._name, (text for name, text in properties if PROPERTY.fullmatch(name)))
        yield other_writers(self._name, *self._recent_commits())
        yield from self._retention()
        yield self._metadata_files()
        yield self._unnamed_check(run_keys)

    def _recent_commits(self) -> tuple[int, list[ForeignCommit]]:
        """Return the number of recent commits, and those of others, including rollbacks of main."""
        snapshots = list(islice(self._ancestors(self._head), RECENT))
        foreign = [_foreign(snapshot) for snapshot in snapshots if RUN_KEY not in _summary(snapshot)]
        if self._branch == MAIN:
            foreign += self._rollbacks()
        return len(snapshots), foreign

    def _retention(self) -> Iterator[Check]:
        """Check how long snapshot expiry keeps snapshots and, if it is idle, the branch itself."""
        properties, ref = self._table.metadata.properties, self._table.metadata.refs.get(self._branch)
        source, text = _MAX_AGE, properties.get(_MAX_AGE, _DEFAULT_AGE_MS)
        if ref is not None and ref.max_snapshot_age_ms is not None:
            source, text = f"max-snapshot-age-ms of branch {self._branch!r}", str(ref.max_snapshot_age_ms)
        yield retention_check(
            f"{self._name} history",
            "snapshots",
            milliseconds(text),
            f"{source}={text}",
            "behind it a retry finds the rows of its run by the table's property alone, and `airflow eos "
            "verify` cannot count them",
        )
        source, age = "its max-ref-age-ms", None if ref is None else ref.max_ref_age_ms
        if age is None:
            source, age = _MAX_REF_AGE, properties.get(_MAX_REF_AGE)
        if self._branch != MAIN and age is not None:
            yield retention_check(
                f"{self._name} branch",
                f"branch {self._branch!r} and the rows of runs in it",
                milliseconds(str(age)),
                f"{source}={age}",
                "an expiry removes the branch, with rows of runs that the ledger has as committed",
            )

    def _metadata_files(self) -> Check:
        subject, properties = f"{self._name} metadata files", self._table.metadata.properties
        if properties.get(_DELETES_METADATA, "false").lower() != "true":
            return Check(subject, "ok", "no commit deletes earlier ones")
        kept = int(properties.get(_METADATA_KEPT, 100))
        finding = f"a commit leaves the last {kept} ({_DELETES_METADATA})"
        if kept >= _SAFE_METADATA:
            return Check(subject, "ok", finding)
        return Check(
            subject,
            "warn",
            finding,
            f"set {_METADATA_KEPT} to {_SAFE_METADATA} or more: a run that reads the table "
            "while others commit finds its metadata deleted, and tries again; rows stay exact",
        )

    def _commit_nothing(self) -> None:
        requirement = AssertTableUUID(uuid=self._table.metadata.table_uuid)
        self._table.catalog.commit_table(self._table, (requirement,), ())

    @property
    def _own_location(self) -> str:
        return f"{self._data_location}/{self._own_file}"

    def _write_file(self) -> None:
        with self._table.io.new_output(self._own_location).create() as stream:
            stream.write(b"airflow eos doctor\n")

    def _delete_file(self) -> None:
        self._table.io.delete(self._own_location)

    def rows_of(
        self,
        receipt: TableReceipt,
        run_key: str,  # noqa: ARG002 - a snapshot's id is of one table and run
        in_time: Callable[[], None],
    ) -> HeldRows | None:
        """See :class:`~airflow_eos.operations.table_inspection.TableInspection`."""
        snapshot = self._table.snapshot_by_id(receipt.snapshot)
        if snapshot is None:
            return None
        paths = [
            entry.data_file.file_path
            for manifest in snapshot.manifests(self._table.io)
            if manifest.added_snapshot_id == receipt.snapshot
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            if entry.snapshot_id == receipt.snapshot
        ]
        rows, missing = 0, []
        for path in paths:
            in_time()
            file = self._table.io.new_input(path)
            if not file.exists():
                missing.append(path.rpartition("/")[2])
                continue
            with file.open() as stream:
                rows += pq.read_metadata(stream).num_rows
        return HeldRows(len(paths), rows, tuple(missing), undone=self._is_undone(snapshot, paths))

    def _is_undone(self, snapshot: Snapshot, paths: Sequence[str]) -> bool:
        """Return whether the branch was rolled back to before a snapshot, and lacks its data files."""
        head = self._head
        if head is None:
            return True
        ancestors = list(self._ancestors(head))
        names = {str(ancestor.snapshot_id) for ancestor in ancestors}
        names |= {_summary(ancestor).get(_PICKED, "") for ancestor in ancestors}
        if str(snapshot.snapshot_id) in names:
            return False
        oldest, numbers = ancestors[-1], {kept.sequence_number for kept in self._table.snapshots()}
        own, first = snapshot.sequence_number or 0, oldest.sequence_number or 0
        # Expiry keeps tagged snapshots, and rolled-back ones until they are old enough. Only expired ones can
        # have been between this snapshot and the head's; format version 1 has no sequence numbers.
        is_expired_between = any(number not in numbers for number in range(own + 1, first))
        if is_expired_between or (not own and oldest.parent_snapshot_id is not None):
            return False
        live = {
            entry.data_file.file_path
            for manifest in head.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        }
        return not live.issuperset(paths)

    @property
    def _head(self) -> Snapshot | None:
        # Rows of a branch that was removed may have been published in the main one before.
        return self._table.metadata.snapshot_by_name(self._branch) or self._table.current_snapshot()

    def _ancestors(self, snapshot: Snapshot | None) -> Iterator[Snapshot]:
        """Yield a snapshot and its unexpired ancestors."""
        by_id = {kept.snapshot_id: kept for kept in self._table.snapshots()}  # pyiceberg searches a list
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else by_id.get(parent)

    def _rollbacks(self) -> Iterator[ForeignCommit]:
        """Yield rollbacks of the main branch; the table does not record who made them."""
        for before, after in pairwise(self._table.history()[-RECENT:]):
            ancestors = self._ancestors(self._table.snapshot_by_id(before.snapshot_id))
            if after.snapshot_id in [snapshot.snapshot_id for snapshot in islice(ancestors, 1, None)]:
                yield ForeignCommit("rollback", "", removes=True, timestamp=after.timestamp_ms)

    def _named_paths(self) -> Iterator[str]:
        """Yield the path of every file in a manifest of any snapshot."""
        seen: set[str] = set()
        for snapshot in self._table.snapshots():
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=False)
                yield from (entry.data_file.file_path for entry in entries)

    @property
    def _data_location(self) -> str:
        default = f"{self._table.location()}/data"
        return self._table.metadata.properties.get("write.data.path", default).rstrip("/")

    def _unnamed(self) -> list[UnnamedFile] | None:
        io = self._table.io
        if not isinstance(io, PyArrowFileIO):
            return None
        # Without a scheme, like the storage's listing.
        named = {io.parse_location(path, io.properties)[2] for path in self._named_paths()}
        scheme, netloc, folder = io.parse_location(self._data_location, io.properties)
        selector = FileSelector(folder, recursive=True, allow_not_found=True)
        files = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
        return [
            UnnamedFile(
                info.path.removeprefix(folder).lstrip("/"), match["label"], info.size or 0, info.mtime
            )
            for info in files
            if (match := _FILE.fullmatch(info.base_name)) is not None and info.path not in named
        ]


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _foreign(snapshot: Snapshot) -> ForeignCommit:
    summary = _summary(snapshot)
    # In format version 1 a snapshot's summary is optional.
    operation = "unknown operation" if snapshot.summary is None else snapshot.summary.operation.value
    engine = f"{summary.get('engine-name', '')} {summary.get('engine-version', '')}".strip()
    application = next((summary[name] for name in _APPLICATION if name in summary), "")
    writer = writer_text(engine, application)
    return ForeignCommit(operation, writer, operation != "append", snapshot.timestamp_ms)
