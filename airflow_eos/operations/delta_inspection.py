"""Inspects a Delta Lake table and its storage for administrators."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem

from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.table import TableReceipt
from airflow_eos.operations.checks import Check
from airflow_eos.operations.foreign_commits import RECENT, ForeignCommit, other_writers, writer_text
from airflow_eos.operations.table_inspection import HeldRows, RunKeys, TableInspection, UnnamedFile
from airflow_eos.operations.table_retention import interval, milliseconds, retention_check
from airflow_eos.run.publishing import RUN_KEY
from airflow_eos.sinks.delta_files import store_of
from airflow_eos.sinks.delta_rows import live_files

_LOG = "_delta_log"
_OF_LOG, _OF_FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
_DEFAULTS = {_OF_LOG: "interval 30 days", _OF_FILES: "interval 1 week"}
# The digest of the run key, a random part.
_FILE = re.compile(r"(?P<label>[0-9a-f]{20})-[0-9a-f-]{36}\.snappy\.parquet")


class DeltaInspection(TableInspection):
    """Inspects one version of a table."""

    REMOVAL = "VACUUM"

    def __init__(self, sink: DeltaTable, version: Any) -> None:
        super().__init__(sink, version.table, dict(sink.properties or {}))
        self._uri = sink.uri

    def checks(self, run_keys: RunKeys) -> Iterator[Check]:
        """See :class:`~airflow_eos.operations.table_inspection.TableInspection`."""
        writers = self._table.protocol().min_writer_version
        yield Check(self._name, "ok", f"there, writer version {writers}; runs can write it")
        yield self._files_check()
        commits = list(self._recent())
        foreign = [_foreign(info, actions) for info, actions in commits if RUN_KEY not in info]
        yield other_writers(self._name, len(commits), foreign)
        need = (
            "behind it `airflow eos verify` cannot count the rows of a run; a retry finds them all the same"
        )
        log, name = self._kept(_OF_LOG)
        yield retention_check(f"{self._name} history", "entries of the log", log, name, need)
        yield self._file_retention()
        yield self._unnamed_check(run_keys)

    def _file_retention(self) -> Check:
        """Check how long VACUUM keeps unreferenced files, by the table's property or the last VACUUM."""
        span, source = self._kept(_OF_FILES)
        for info, _ in self._recent():
            given = info.get("operationParameters", {}).get("specifiedRetentionMillis")
            if info.get("operation") == "VACUUM START" and given is not None:
                last = milliseconds(str(given))
                if last is None or span is None or last < span:
                    span, source = last, f"the last VACUUM: {given} ms"
                break
        return retention_check(
            f"{self._name} unpublished files",
            "data files that no version names",
            span,
            source,
            "VACUUM would delete what a run at work has written and not yet published, and its rows would be "
            "missing from the table",
        )

    def _kept(self, name: str) -> tuple[dt.timedelta | None, str]:
        text = self._table.metadata().configuration.get(name, _DEFAULTS[name])
        return interval(text), f"{name}={text}"

    def _write_file(self) -> None:
        pq.write_table(pa.table({"airflow eos": ["doctor"]}), self._own_file, filesystem=self._store())

    def _delete_file(self) -> None:
        self._store().delete_file(self._own_file)

    def rows_of(self, receipt: TableReceipt, run_key: str, in_time: Callable[[], None]) -> HeldRows | None:
        """See :class:`~airflow_eos.operations.table_inspection.TableInspection`.

        Files that a later version has removed may be deleted: they count as gone, not as missing.
        """
        entry = self._entry(receipt.snapshot)
        if entry is None:
            return None
        if not any(action.get("commitInfo", {}).get(RUN_KEY) == run_key for action in entry):
            return HeldRows(files=0, rows=0)
        live = {file.path for file in live_files(self._table)}
        store = self._store()
        paths = [action["add"]["path"] for action in entry if "add" in action]
        rows, missing, removed = 0, [], 0
        for path in paths:
            in_time()
            if store.get_file_info(path).is_file:
                with store.open_input_file(path) as stream:
                    rows += pq.read_metadata(stream).num_rows
            elif path in live:
                missing.append(path)
            else:
                removed += 1
        undone = not live.issuperset(paths) and self._is_undone(receipt.snapshot)
        return HeldRows(len(paths), rows, tuple(missing), removed, undone)

    def _is_undone(self, version: int) -> bool:
        """Return whether the table was restored to a version before ``version``."""
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
        """Return the last version before a RESTORE with the same data files; ``oldest`` - 1 without one."""
        differing: set[str] = set()
        for version in range(restored, oldest, -1):
            for action in self._entry(version) or ():
                file = action.get("add") or action.get("remove")
                if file is not None:
                    differing ^= {json.dumps([file["path"], file.get("deletionVector")], sort_keys=True)}
            if not differing:
                return version - 1
        return oldest - 1

    def _recent(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield the last commits, the newest first: ``commitInfo`` and actions of each."""
        newest = int(self._table.version())
        for version in range(newest, max(-1, newest - RECENT), -1):
            actions = self._entry(version)
            if actions is None:
                return
            yield next((action["commitInfo"] for action in actions if "commitInfo" in action), {}), actions

    def _store(self) -> FileSystem:
        return store_of(self._uri, self._properties)

    def _entry(self, version: int) -> list[dict[str, Any]] | None:
        store, path = self._store(), f"{_LOG}/{version:020}.json"
        return _actions(store, path) if store.get_file_info(path).is_file else None

    def _unnamed(self) -> list[UnnamedFile]:
        """Return the data files of runs that are neither live nor named by an entry of the log."""
        store = self._store()
        named = {file.path for file in live_files(self._table)}
        for info in store.get_file_info(FileSelector(_LOG)):
            if info.base_name.endswith(".json") and info.base_name[:20].isdigit():
                for action in _actions(store, f"{_LOG}/{info.base_name}"):
                    named |= {action[kind]["path"] for kind in ("add", "remove") if kind in action}
        return [
            UnnamedFile(info.base_name, match["label"], info.size or 0, info.mtime)
            for info in store.get_file_info(FileSelector("", recursive=False))
            if (match := _FILE.fullmatch(info.base_name)) is not None and info.base_name not in named
        ]


def _actions(store: FileSystem, path: str) -> list[dict[str, Any]]:
    with store.open_input_file(path) as stream:
        return [json.loads(line) for line in stream.readall().splitlines() if line.strip()]


def _foreign(info: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]) -> ForeignCommit:
    """Return a commit; its actions decide whether it removes, as engines name operations differently."""
    application = next((action["txn"]["appId"] for action in actions if "txn" in action), "")
    return ForeignCommit(
        str(info.get("operation", "unknown operation")),
        writer_text(str(info.get("engineInfo", "")), application),
        removes=any("remove" in action for action in actions),
        timestamp=int(info.get("timestamp", 0)),
    )
