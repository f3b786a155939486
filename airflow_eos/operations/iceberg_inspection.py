"""Inspects an Iceberg table and its storage; commits and removes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from airflow_eos.model.iceberg_table import MAIN
from airflow_eos.model.table import TableReceipt
from airflow_eos.operations.foreign_commits import RECENT, ForeignCommit, writer_text
from airflow_eos.operations.table_inspection import HeldRows, TableInspection, UnnamedFile
from airflow_eos.operations.table_retention import Retention, milliseconds
from airflow_eos.run.publishing import RUN_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

PROPERTY = re.compile(r"eos\.[0-9a-f]+")
"""Names of the properties of a table that say which runs published last."""
_APPLICATION = ("app-id", "spark.app.id", "flink.job-id", "trino_query_id")
"""Under which names engines put themselves into the summary of a snapshot."""
_MAX_AGE, _DEFAULT_AGE_MS = "history.expire.max-snapshot-age-ms", "432000000"
_MAX_REF_AGE = "history.expire.max-ref-age-ms"
_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"
_METADATA_KEPT = "write.metadata.previous-versions-max"
# Counter and task of the writer, the digest of the run key, a random part.
_FILE = re.compile(r"\d+-\d+-(?P<label>[0-9a-f]{20})-[0-9a-f-]{36}[-.\d]*\.parquet")


class IcebergInspection(TableInspection):
    """Looks at one version of a table."""

    _table: Table

    def __init__(self, version: Any, properties: Mapping[str, str] | None) -> None:
        super().__init__(version.table, {**version.table.io.properties, **(properties or {})})

    @property
    def format_version(self) -> int:
        """Version of the table's format."""
        return self._table.metadata.format_version

    def published(self) -> list[str]:
        """Return the texts of the properties in which groups keep what they have published last."""
        properties = sorted(self._table.metadata.properties.items())
        return [text for name, text in properties if PROPERTY.fullmatch(name)]

    def recent_commits(self, branch: str) -> tuple[int, list[ForeignCommit]]:
        """Return the number of the last commits to a branch, and those of others, also rollbacks of main."""
        snapshots = list(islice(self._ancestors(self._head(branch)), RECENT))
        foreign = [_foreign(snapshot) for snapshot in snapshots if RUN_KEY not in _summary(snapshot)]
        if branch == MAIN:
            foreign += self._rollbacks()
        return len(snapshots), foreign

    def retention(self, branch: str) -> Retention:
        """Return for how long an expiry of snapshots keeps those of a branch, unless it is told otherwise."""
        ref = self._table.metadata.refs.get(branch)
        age = None if ref is None else ref.max_snapshot_age_ms
        source, text = _MAX_AGE, self._table.metadata.properties.get(_MAX_AGE, _DEFAULT_AGE_MS)
        if age is not None:
            source, text = f"max-snapshot-age-ms of branch {branch!r}", str(age)
        return Retention(
            "snapshots",
            milliseconds(text),
            f"{source}={text}",
            "behind it a retry finds the rows of its run by the table's property alone, and `airflow eos "
            "verify` cannot count them",
        )

    def branch_retention(self, branch: str) -> Retention | None:
        """Return for how long an expiry of snapshots keeps an idle branch; None: for ever."""
        ref = self._table.metadata.refs.get(branch)
        source, age = "its max-ref-age-ms", None if ref is None else ref.max_ref_age_ms
        if age is None:
            source, age = _MAX_REF_AGE, self._table.metadata.properties.get(_MAX_REF_AGE)
        if branch == MAIN or age is None:
            return None
        return Retention(
            f"branch {branch!r} and the rows of runs in it",
            milliseconds(str(age)),
            f"{source}={age}",
            "an expiry removes the branch, with rows of runs that the ledger has as committed",
        )

    def metadata_kept(self) -> int | None:
        """Return how many earlier metadata files a commit leaves; None: all of them."""
        properties = self._table.metadata.properties
        if properties.get(_DELETES_METADATA, "false").lower() != "true":
            return None
        return int(properties.get(_METADATA_KEPT, 100))

    def refused_commit(self) -> str:
        """Return why the catalog refuses a commit that changes nothing; empty if it takes it."""
        from pyiceberg.table.update import AssertTableUUID

        requirement = AssertTableUUID(uuid=self._table.metadata.table_uuid)
        return self._refusal(lambda: self._table.catalog.commit_table(self._table, (requirement,), ()))

    def write_refusals(self) -> tuple[str, str]:
        """Return why the storage refuses a small file beside the data files, and why to delete it again."""
        location = f"{self._data_location}/{self._own_file}"

        def write() -> None:
            with self._table.io.new_output(location).create() as stream:
                stream.write(b"airflow eos doctor\n")

        return self._file_refusals(write, lambda: self._table.io.delete(location))

    def unnamed_files(self) -> list[UnnamedFile] | None:
        """Return the data files of runs that no snapshot names; None if the storage cannot be listed."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if not isinstance(self._table.io, PyArrowFileIO):
            return None
        return sorted(self._unnamed(self._table.io), key=lambda file: file.path)

    def rows_of(self, receipt: TableReceipt, branch: str, in_time: Callable[[], None]) -> HeldRows | None:
        """Return what the data files hold that a run's snapshot added; None if the snapshot was expired.

        :param branch: that the run wrote to.
        :param in_time: raises when there is no time left; called before each file.
        """
        import pyarrow.parquet as pq

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
        return HeldRows(len(paths), rows, tuple(missing), undone=self._is_undone(snapshot, branch, paths))

    def _is_undone(self, snapshot: Snapshot, branch: str, paths: Sequence[str]) -> bool:
        """Return whether a branch was set back behind a snapshot, and lacks data files that it added."""
        from pyiceberg.manifest import ManifestContent

        head = self._head(branch)
        if head is None:
            return True
        ancestors = list(self._ancestors(head))
        if snapshot.snapshot_id in [ancestor.snapshot_id for ancestor in ancestors]:
            return False
        oldest, numbers = ancestors[-1], {kept.sequence_number for kept in self._table.snapshots()}
        own, first = snapshot.sequence_number or 0, oldest.sequence_number or 0
        # An expiry leaves tagged snapshots, and those that were set back for as long as their age says. Only
        # expired ones can have stood between this one and the head's; format version 1 has no numbers.
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

    def _head(self, branch: str) -> Snapshot | None:
        return self._table.metadata.snapshot_by_name(branch)

    def _ancestors(self, snapshot: Snapshot | None) -> Iterator[Snapshot]:
        """Yield a snapshot and those before it, as far as they are not expired."""
        by_id = {kept.snapshot_id: kept for kept in self._table.snapshots()}  # pyiceberg searches a list
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else by_id.get(parent)

    def _rollbacks(self) -> Iterator[ForeignCommit]:
        """Yield the moves of the main branch to a snapshot before its head; nothing says who made them."""
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

    def _unnamed(self, io: Any) -> Iterator[UnnamedFile]:
        from pyarrow.fs import FileSelector

        # As the storage's listing has them: without a scheme.
        named = {io.parse_location(path, io.properties)[2] for path in self._named_paths()}
        scheme, netloc, folder = io.parse_location(self._data_location, io.properties)
        selector = FileSelector(folder, recursive=True, allow_not_found=True)
        for info in io.fs_by_scheme(scheme, netloc).get_file_info(selector):
            match = _FILE.fullmatch(info.base_name)
            if match is not None and info.path not in named:
                below = info.path.removeprefix(folder).lstrip("/")
                yield UnnamedFile(below, match["label"], info.size or 0, info.mtime)


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _foreign(snapshot: Snapshot) -> ForeignCommit:
    summary = _summary(snapshot)
    # Format version 1 lets a snapshot have no summary.
    operation = "unknown operation" if snapshot.summary is None else snapshot.summary.operation.value
    engine = f"{summary.get('engine-name', '')} {summary.get('engine-version', '')}".strip()
    application = next((summary[name] for name in _APPLICATION if name in summary), "")
    writer = writer_text(engine, application)
    return ForeignCommit(operation, writer, operation != "append", snapshot.timestamp_ms)
