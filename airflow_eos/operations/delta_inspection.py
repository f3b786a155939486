"""What a Delta Lake table and its storage tell an administrator. Nothing is committed or removed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_eos.operations.foreign_commits import RECENT, ForeignCommit, writer_text
from airflow_eos.operations.table_inspection import HeldRows, TableInspection, UnnamedFile
from airflow_eos.operations.table_retention import Retention, interval, milliseconds
from airflow_eos.run.publishing import RUN_KEY
from airflow_eos.sinks.delta_rows import live_files

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from airflow_eos.model.table import TableReceipt

_LOG = "_delta_log"
_OF_LOG, _OF_FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
_DEFAULTS = {_OF_LOG: "interval 30 days", _OF_FILES: "interval 1 week"}
# The digest of the run key, a random part.
_FILE = re.compile(r"(?P<label>[0-9a-f]{20})-[0-9a-f-]{36}\.snappy\.parquet")


class DeltaInspection(TableInspection):
    """Looks at one version of a table."""

    def __init__(self, version: Any, uri: str, options: Mapping[str, str] | None) -> None:
        super().__init__(version.table, dict(options or {}))
        self._uri = uri

    @property
    def writer_version(self) -> int:
        """Version of the protocol that writers need."""
        return int(self._table.protocol().min_writer_version)

    def recent_commits(self) -> tuple[int, list[ForeignCommit]]:
        """Return the number of the last commits that the log has, and those of others."""
        commits = list(self._recent())
        return len(commits), [_foreign(info, actions) for info, actions in commits if RUN_KEY not in info]

    def log_retention(self) -> Retention:
        """Return for how long the log is kept."""
        return self._retention(
            "entries of the log",
            _OF_LOG,
            "behind it `airflow eos verify` cannot count the rows of a run; a retry finds them all the same",
        )

    def file_retention(self) -> Retention:
        """Return for how long VACUUM keeps files that no version names: as the table or the last one says."""
        retention = self._retention(
            "data files that no version names",
            _OF_FILES,
            "VACUUM would delete what a run at work has written and not yet published, and its rows would be "
            "missing from the table",
        )
        for info, _ in self._recent():
            given = info.get("operationParameters", {}).get("specifiedRetentionMillis")
            if info.get("operation") == "VACUUM START" and given is not None:
                span = milliseconds(str(given))
                if span is None or retention.span is None or span < retention.span:
                    return replace(retention, span=span, source=f"the last VACUUM: {given} ms")
                break
        return retention

    def write_refusals(self) -> tuple[str, str]:
        """Return why the store refuses a small file beside the data files, and why to delete it again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pa.table({"airflow eos": ["doctor"]})
        return self._file_refusals(
            lambda: pq.write_table(rows, self._own_file, filesystem=self._store()),
            lambda: self._store().delete_file(self._own_file),
        )

    def unnamed_files(self) -> list[UnnamedFile]:
        """Return the data files of runs that are not live, and that no entry of the log names."""
        return sorted(self._unnamed(), key=lambda file: file.path)

    def rows_of(self, receipt: TableReceipt, run_key: str, in_time: Callable[[], None]) -> HeldRows | None:
        """Return what the data files hold that a run's version added; None if the log no longer has it.

        Files that a later version has removed may be deleted: they count as gone, not as missing.

        :param in_time: raises when there is no time left; called before each file.
        """
        import pyarrow.parquet as pq

        entry = self._entry(receipt.snapshot)
        if entry is None:
            return None
        if not any(action.get("commitInfo", {}).get("eos.run-key") == run_key for action in entry):
            return HeldRows(files=0, rows=0)
        live = {file.path for file in live_files(self._table)}
        store = self._store()
        paths = [action["add"]["path"] for action in entry if "add" in action]
        rows, missing, removed = 0, [], 0
        for path in paths:
            in_time()
            if self._is_there(store, path):
                with store.open_input_file(path) as stream:
                    rows += pq.read_metadata(stream).num_rows
            elif path in live:
                missing.append(path)
            else:
                removed += 1
        undone = not live.issuperset(paths) and self._is_undone(receipt.snapshot)
        return HeldRows(len(paths), rows, tuple(missing), removed, undone)

    def _is_undone(self, version: int) -> bool:
        """Return whether the table was restored to a version before one that added data files."""
        newest = int(self._table.version())
        restored = {
            int(commit["version"]): commit.get("operationParameters", {}).get("version")
            for commit in self._table.history(newest - version)
            if commit.get("operation") == "RESTORE"
        }
        now = newest
        while now > version:
            if now not in restored:
                now -= 1
            elif restored[now] is not None:
                now = int(restored[now])
            else:  # to a moment
                now = self._version_as(now, version)
        return now < version

    def _version_as(self, restored: int, oldest: int) -> int:
        """Return the last version before a RESTORE with its data files; if none had them, `oldest` - 1."""
        differing: set[str] = set()
        for version in range(restored, oldest, -1):
            for action in self._entry(version) or ():
                file = action.get("add") or action.get("remove")
                if file is not None:
                    differing ^= {json.dumps([file["path"], file.get("deletionVector")], sort_keys=True)}
            if not differing:
                return version - 1
        return oldest - 1

    def _retention(self, kept: str, name: str, need: str) -> Retention:
        text = self._table.metadata().configuration.get(name, _DEFAULTS[name])
        return Retention(kept, interval(text), f"{name}={text}", need)

    def _recent(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield the last commits, the newest first: what each says of itself, and its actions."""
        newest = int(self._table.version())
        for version in range(newest, max(-1, newest - RECENT), -1):
            actions = self._entry(version)
            if actions is None:
                return
            yield next((action["commitInfo"] for action in actions if "commitInfo" in action), {}), actions

    def _store(self) -> FileSystem:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._uri, self._properties))

    def _is_there(self, store: FileSystem, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(store.get_file_info(path).type == FileType.File)

    def _entry(self, version: int) -> list[dict[str, Any]] | None:
        store, path = self._store(), f"{_LOG}/{version:020}.json"
        return self._actions(store, path) if self._is_there(store, path) else None

    def _actions(self, store: FileSystem, path: str) -> list[dict[str, Any]]:
        with store.open_input_file(path) as stream:
            return [json.loads(line) for line in stream.readall().splitlines() if line.strip()]

    def _unnamed(self) -> Iterator[UnnamedFile]:
        from pyarrow.fs import FileSelector

        store = self._store()
        named = {file.path for file in live_files(self._table)}
        for info in store.get_file_info(FileSelector(_LOG)):
            if info.base_name.endswith(".json") and info.base_name[:20].isdigit():
                for action in self._actions(store, f"{_LOG}/{info.base_name}"):
                    named |= {action[kind]["path"] for kind in ("add", "remove") if kind in action}
        for info in store.get_file_info(FileSelector("", recursive=False)):
            match = _FILE.fullmatch(info.base_name)
            if match is not None and info.base_name not in named:
                yield UnnamedFile(info.base_name, match["label"], info.size or 0, info.mtime)


def _foreign(info: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]) -> ForeignCommit:
    """Return a commit by its actions: operations of engines have many names."""
    application = next((action["txn"]["appId"] for action in actions if "txn" in action), "")
    return ForeignCommit(
        str(info.get("operation", "unknown operation")),
        writer_text(str(info.get("engineInfo", "")), application),
        removes=any("remove" in action for action in actions),
        timestamp=int(info.get("timestamp", 0)),
    )
