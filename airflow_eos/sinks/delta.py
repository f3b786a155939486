"""A Delta Lake table as a sink, read and committed through its transaction log.

A commit creates the next version of the log if it is absent. deltalake's own retries are off: they would
commit on top of a version that the run has not read.

For each application id the log and its checkpoints keep the version of the last transaction (``txn``), which
never expires. A run's commit stores the token of its claim as that version, and its receipt as the versions
of three more ids. The entry in the history is for people: it expires with the log.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSelector

from airflow_eos.exceptions import ConfigurationError, UnknownTable
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.table import (
    EarlierRows,
    PublishedRun,
    PublishedRuns,
    TableCommit,
    TableLayout,
    TableReceipt,
)
from airflow_eos.sinks.base_sink import BaseSink
from airflow_eos.sinks.delta_features import INDEXED, TARGET, refuse_unwritable
from airflow_eos.sinks.delta_files import DeltaFiles, store_of
from airflow_eos.sinks.delta_rows import LiveFile, files_as_added

_RECEIPT = tuple(field.name for field in fields(TableReceipt))
_UNSAFE = ("mount_allow_unsafe_rename", "allow_unsafe_rename")
_UNCONDITIONAL = {
    "conditional_put": "disabled",
    "aws_conditional_put": "disabled",
    "aws_s3_locking_provider": "dynamodb",
}
_ENDPOINTS = ("aws_endpoint_url", "aws_endpoint", "azure_storage_endpoint")
_NOT_SENT = "builder error"
"""Error text of delta-rs's HTTP client for a request that it does not send: http:// without allow_http."""
_NOT_ALLOWED = re.compile(
    "(Kernel error -> )?The operation lacked (the necessary privileges|valid authentication credentials) "
)
"""How delta-rs reports a 403 or 401 of any store; the store's own message follows."""
_PARALLEL_LOOKUPS = 32
"""Data files that are looked up in a store at the same time."""
_TRUE = ("1", "true", "on", "yes", "y")
_MOST_IN_MEMORY, _MOST_INDEXED = 128 << 20, 32


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """Implements ``airflow_eos.table_ports.TableVersion``.

    :param application: prefix of the application ids of the pipeline's transactions.
    """

    table: deltalake.DeltaTable
    layout: TableLayout
    application: str

    @property
    def published(self) -> PublishedRuns:
        """Return the tokens that the log keeps for the pipeline's application ids."""
        return PublishedRuns(_Tokens(self))

    def snapshot_of(self, scope: str, token: int) -> TableReceipt | None:
        """Return the receipt of the transaction with this token; None if the log keeps another token."""
        if self.transaction(scope) != token:
            return None
        return TableReceipt.from_dict({name: self.transaction(scope, name) for name in _RECEIPT})

    def transaction(self, scope: str, name: str = "token") -> int | None:
        """Return the version that the log keeps for an application id."""
        version: int | None = self.table.transaction_version(self.application_id(scope, name))
        return version

    def application_id(self, scope: str, name: str = "token") -> str:
        """Return the application id of a scope's token or of a part of its receipt."""
        return f"{self.application}.{scope}.{name}"


class _Tokens(Mapping[str, PublishedRun]):
    """The last published run by scope, as far as the log keeps it: a token without a key.

    A log cannot list its application ids, so iteration is empty: no entry is ever removed.
    """

    def __init__(self, version: DeltaVersion) -> None:
        self._version = version

    def __getitem__(self, scope: str) -> PublishedRun:
        token = self._version.transaction(scope)
        if token is None:
            raise KeyError(scope)
        # The empty key matches no run: DeltaVersion.snapshot_of finds the run by its token.
        return PublishedRun(key="", token=token, receipt=None, lasting=True)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class DeltaSink(BaseSink):
    """Implements ``airflow_eos.table_ports.TableSink``.

    :param application: prefix of the application ids of the pipeline's transactions.
    :raises ConfigurationError: an option lets commits overwrite others.
    """

    SYSTEM = "the store"
    CONFLICTS = (CommitFailedError,)

    _sink: DeltaTable

    def __init__(self, sink: DeltaTable, application: str) -> None:
        self._sink = sink
        self._options = dict(sink.properties or {})
        self._application = application
        # In the names of data files: runs of two ledgers can have the same key.
        self._owner = f"-{application[-8:]}"
        self._refuse_options()

    def close(self) -> None:
        """Do nothing: delta-rs holds no connection between calls."""

    def _load(self, *, to_write: bool) -> DeltaVersion:
        try:
            table = deltalake.DeltaTable(self._sink.uri, storage_options=self._options)
        except TableNotFoundError as error:
            is_there = self._is_folder_above_there()
            lost = "mount its file system" if self._sink.store is None else "correct endpoint and bucket"
            hint = "" if is_there else f", or {lost}: nothing is in the folder above"
            raise UnknownTable(
                f"{self.name} does not exist: create the table, or correct sink=DeltaTable(...){hint} "
                f"({self._reason(error)})",
                is_missing=is_there,
            ) from None
        except Exception as error:
            if _NOT_ALLOWED.match(str(error)):
                raise ConfigurationError(
                    f"{self.name}: the store does not take the credentials of connection or environment, or "
                    f"not for this table: {self._reason(error)}"
                ) from None
            if self._accepts_options(error):
                raise
            raise ConfigurationError(
                f"{self.name}: the storage options of connection or environment are not valid: "
                f"{self._reason(error)}"
            ) from None
        if to_write:
            refuse_unwritable(self.name, table)
        metadata = table.metadata()
        layout = TableLayout(
            str(metadata.id),
            _digest(json.loads(table.schema().to_json())),
            _digest(metadata.partition_columns),
        )
        return DeltaVersion(table, layout, self._application)

    def writer(self, version: Any, label: str) -> DeltaFiles:
        """Return the writer of data files for this version."""
        metadata, schema = version.table.metadata(), version.table.schema()
        indexed = int(metadata.configuration.get(INDEXED, _MOST_INDEXED))
        size = metadata.configuration.get(TARGET)
        return DeltaFiles(
            name=self.name,
            uri=self._sink.uri,
            options=self._options,
            schema=pa.schema(schema.to_arrow()),
            partitions=tuple(metadata.partition_columns),
            indexed=len(schema.fields) if indexed < 0 else indexed,
            flush_bytes=_MOST_IN_MEMORY if size is None else min(_bytes(size), _MOST_IN_MEMORY),
            label=label + self._owner,
        )

    def _find_earlier_rows(self, version: Any, replaces: Sequence[EarlierRows]) -> list[LiveFile]:
        return files_as_added(version.table, replaces, self._owner, self._sink)

    def _commit(self, version: Any, change: TableCommit) -> TableReceipt:
        """Append files, remove replaced ones and store the run's token, in one compare-and-set."""
        table = version.table
        receipt = change.receipt(table.version() + 1)
        numbers = {"token": change.run.token, **({} if change.run.receipt is None else receipt.to_dict())}
        now = int(time.time() * 1000)
        properties = deltalake.CommitProperties(
            custom_metadata=dict(change.summary),
            max_commit_retries=0,
            app_transactions=[
                deltalake.Transaction(version.application_id(change.scope, name), number, now)
                for name, number in numbers.items()
            ],
        )
        removed = self._find_earlier_rows(version, change.replaces)
        added = [json.loads(file.data) for file in change.files]
        paths = [action["path"] for action in added]
        store = store_of(self._sink.uri, self._options)
        with ThreadPoolExecutor(_PARALLEL_LOOKUPS) as threads:  # a lookup of several files is sequential
            present = list(threads.map(lambda path: store.get_file_info(path).is_file, paths))
        self._refuse_missing_files(paths, present)
        actions = [AddAction(**action) for action in added]
        actions += [
            RemoveAction(
                path=file.path,
                data_change=True,
                deletion_timestamp=now,
                size=file.size,
                partition_values=dict(file.partition_values),
            )
            for file in removed
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=properties,
        )
        return receipt

    def _accepts_options(self, error: Exception) -> bool:
        """Return whether delta-rs accepts the storage options: then the store was asked; sends nothing."""
        if self._sink.store is None:
            return True
        if _NOT_SENT in str(error):
            return False
        try:
            store_of(self._sink.uri, self._options)
        except Exception:  # noqa: BLE001 - of any store's client
            return False
        return True

    def _is_folder_above_there(self) -> bool:
        """Return whether the folder above a missing table exists, so that only the table is missing.

        Otherwise its file system is not mounted on this host, or the connection leads to another store.
        """
        above = self._sink.uri.removeprefix("file://").rstrip("/").rpartition("/")[0]
        if self._sink.store is None:
            return Path(above or "/").is_dir()
        with suppress(Exception):  # of any store's client: the folder is then not known to exist
            return bool(store_of(above, self._options).get_file_info(FileSelector("")))
        return False

    def _refuse_options(self) -> None:
        """Refuse options by which a commit in a file system may overwrite another commit's log version.

        Also refuse S3 options that disable put-if-absent or rely on locks in DynamoDB, which delta-rs no
        longer supports, and an endpoint without a scheme, on which delta-rs panics.
        """
        options = {name.lower(): value for name, value in (*os.environ.items(), *self._options.items())}
        for name in _UNSAFE:
            if options.get(name, "").lower() in _TRUE:
                raise ConfigurationError(
                    f"{self.name}: the storage option {name}={options[name]!r}, of connection or "
                    "environment, lets commits overwrite each other, so that a run could be lost: remove it"
                )
        for name, value in _UNCONDITIONAL.items():
            if self._sink.store == "S3" and options.get(name, "").lower() == value:
                raise ConfigurationError(
                    f"{self.name}: the storage option {name}={value!r}, of connection or environment, is for "
                    "commits that are no put-if-absent, by which alone no run is lost: let all writers of "
                    "the table use it, and remove the option"
                )
        for name in _ENDPOINTS:
            if self._sink.store is not None and "://" not in (options.get(name) or "://"):
                raise ConfigurationError(
                    f"{self.name}: the storage option {name}, of connection or environment, is not a URL; "
                    "give it with its scheme, as https://host:port"
                )


def _bytes(size: str) -> int:
    """Return a size as Delta's properties have it: bytes, or with a unit as ``100mb``."""
    number = size.lower().strip().removesuffix("b")
    unit = 10 * (1 + "kmgtp".find(number[-1]))
    return int(number[:-1] if unit else number) << unit


def _digest(value: Any) -> int:
    # Sorted: deltalake gives the metadata of a column in another order each time.
    return int(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12], 16)
