"""What a Delta Lake table and its storage tell an administrator. Nothing is committed or removed."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.operations.unnamed_files import HeldRows, UnnamedFile
from airflow_eos.sinks.delta_rows import live_files
from airflow_eos.sinks.redaction import redacted

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from airflow_eos.model.table import TableReceipt
    from airflow_eos.sinks.delta import DeltaVersion

_LOG = "_delta_log"
# The digest of the run key, a random part.
_FILE = re.compile(r"(?P<label>[0-9a-f]{20})-[0-9a-f-]{36}\.snappy\.parquet")


class DeltaInspection:
    """Looks at one version of a table.

    :param uri: of the table's folder.
    :param options: of the object store; their values are kept out of messages.
    """

    def __init__(self, version: DeltaVersion, uri: str, options: Mapping[str, str] | None) -> None:
        self._table = version.table
        self._uri = uri
        self._options = dict(options or {})

    @property
    def writer_version(self) -> int:
        """Version of the protocol that writers need."""
        return int(self._table.protocol().min_writer_version)

    def refused_write(self) -> str:
        """Return why the store refuses a small file beside the data files; empty if it takes it.

        The file is deleted again. Its name is not that of a data file.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = f".airflow-eos-doctor-{uuid.uuid4()}"

        def write() -> None:
            store = self._store()
            pq.write_table(pa.table({"airflow eos": ["doctor"]}), name, filesystem=store)
            store.delete_file(name)

        return self._refusal(write)

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
        return HeldRows(len(paths), rows, tuple(missing), removed)

    def _store(self) -> FileSystem:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._uri, self._options))

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

    def _refusal(self, act: Callable[[], Any]) -> str:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - of any object store
            return redacted(f"{type(error).__name__}: {error}", self._options)
        return ""
