"""An Iceberg table as a sink, read and committed through its catalog.

A commit is one request to the catalog: an append, the property that lists published runs, and requirements:
branch head, schema, partition spec and UUID are still those that the run has read. It does not use
pyiceberg's own ``commit_transaction``, which retries on a table state that the run has not read, and deletes
the manifests of a refused commit even where a proxy sent the request twice and the first one succeeded.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyiceberg
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    TableUpdate,
)
from pyiceberg.types import NestedField, StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, TableRefused, UnknownTable
from airflow_eos.model.iceberg_table import MAIN, IcebergTable
from airflow_eos.model.table import EarlierRows, PublishedRuns, TableCommit, TableLayout, TableReceipt
from airflow_eos.sinks.base_sink import BaseSink
from airflow_eos.sinks.iceberg_files import IcebergFiles, unwritable_partitions, unwritable_properties
from airflow_eos.sinks.iceberg_rows import files_as_added
from airflow_eos.sinks.refused_login import is_refused_login
from airflow_eos.table_ports import TableMoved

CATALOG_NAME = "catalog_name"
"""The property that names the catalog; without it the connection's id does."""
SCOPE, TOKEN, BARRED, PROPERTY = "eos.scope", "eos.token", "eos.barred", "eos.property"
_FORMATS = (1, 2)
_CODEC = "write.parquet.compression-codec"
_CODECS = ("brotli", "gzip", "lz4", "none", "snappy", "uncompressed", "zstd")
_FILES, _ROWS = "added-data-files", "added-records"
_NOT_OF_CATALOG = re.compile(r"(\w+: )?RestError\b", re.IGNORECASE)
"""How pyiceberg reports a response without the error object that the REST catalog specification requires."""
_UNREADABLE = ("union_tag_invalid", "value_error")
"""Types of pydantic's errors for table metadata of a later version: of its format, or with other types."""
_ANSWER_SECONDS = 120
"""Time-out of requests: pyiceberg has none, and a catalog, or a firewall that drops packets, may hang."""


class _SpecAsInJava(PartitionSpec):
    """A partition spec that has null for a field that was removed, and for a null around its column.

    pyiceberg writes no null where the column is required.
    """

    def partition_type(self, schema: Schema) -> StructType:
        """Return the type of partition values, all of them optional."""
        fields = super().partition_type(schema).fields
        return StructType(*(NestedField(field.field_id, field.name, field.field_type) for field in fields))


@dataclass(frozen=True, slots=True)
class IcebergVersion:
    """Implements ``airflow_eos.table_ports.TableVersion``.

    :param property_name: also in the summaries: runs of two ledgers can have the same scope and token.
    """

    table: Table
    layout: TableLayout
    published: PublishedRuns
    property_name: str

    def snapshot_of(self, scope: str, token: int) -> TableReceipt | None:
        """Return the receipt in the summary of the snapshot that a run committed; None if there is none."""
        claim = {PROPERTY: self.property_name, SCOPE: scope, TOKEN: str(token)}
        for snapshot in self.table.metadata.snapshots:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if claim.items() <= summary.items() and BARRED not in summary:
                return TableReceipt(
                    snapshot.snapshot_id, int(summary.get(_FILES, 0)), int(summary.get(_ROWS, 0))
                )
        return None


class IcebergSink(BaseSink):
    """Implements ``airflow_eos.table_ports.TableSink``.

    :param property_name: the table property that lists this pipeline's published runs.
    """

    SYSTEM = "catalog or storage"
    CONFLICTS = (CommitFailedException,)

    _sink: IcebergTable

    def __init__(self, sink: IcebergTable, property_name: str) -> None:
        self._sink = sink
        self._property = property_name
        self._catalog: Catalog | None = None

    def _load(self, *, to_write: bool) -> IcebergVersion:
        try:
            table = self._opened().load_table(self._sink.name)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            if _NOT_OF_CATALOG.match(str(error)):
                raise  # a gateway's answer for a catalog that is down
            raise UnknownTable(
                f"{self.name} does not exist: create the table {self._sink.name!r} in catalog "
                f"{self._sink.catalog!r}, or correct sink=IcebergTable(...){self._name_hint()}",
                is_missing=True,
            ) from None
        except (AuthorizationExpiredError, ForbiddenError, OAuthError, UnauthorizedError) as error:
            raise ConfigurationError(
                f"{self.name}: the catalog does not take the credentials of connection or environment, or "
                f"not for this table: {self._reason(error)}"
            ) from None
        except Exception as error:
            # pyiceberg raises a ValidationError of its own from that of pydantic.
            parsing: Any = error.__cause__ or error
            is_of_pydantic = type(parsing).__name__ == "ValidationError" and hasattr(parsing, "errors")
            details = parsing.errors(include_input=False) if is_of_pydantic else ()
            reason = next((detail["msg"] for detail in details if detail["type"] in _UNREADABLE), None)
            if reason is None:
                raise
            raise ConfigurationError(
                f"{self.name}: pyiceberg {pyiceberg.__version__} cannot read the table's metadata: {reason}. "
                "Upgrade pyiceberg if a later version can, or write another table"
            ) from None
        if to_write:
            self._refuse_another_branch(table)
            reason = next(_unwritable(table.metadata), None)
            if reason is not None:
                raise UnknownTable(f"{self.name}{reason}")
        metadata = table.metadata
        layout = TableLayout(str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id)
        published = PublishedRuns.from_json(metadata.properties.get(self._property))
        return IcebergVersion(table, layout, published, self._property)

    def name_of(self, identity: str) -> str | None:
        """Return the name of the table with a UUID in the sink's namespace; None if none is visible there.

        :raises OutcomeUnknown: the catalog does not have the namespace, or does not answer.
        """
        with self._read_errors():
            catalog = self._opened()
            for name in catalog.list_tables(catalog.namespace_from(self._sink.name)):
                with suppress(ForbiddenError, NoSuchTableError):
                    if str(catalog.load_table(name).metadata.table_uuid) == identity:
                        return ".".join(name)
        return None

    def close(self) -> None:
        """Close the connections to the catalog, such as those of an SQL catalog to its database."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def writer(self, version: Any, label: str) -> IcebergFiles:
        """Return the writer of data files for this version."""
        table = version.table
        without_history = table.metadata.model_copy(
            update={
                "properties": _for_files(table.metadata.properties),
                "snapshots": [],
                "refs": {},
                "current_snapshot_id": None,
                "snapshot_log": [],
                "metadata_log": [],
                "statistics": [],
                "partition_statistics": [],
            }
        )
        return IcebergFiles(
            self.name,
            without_history.model_dump_json(),
            dict(table.io.properties),
            table.metadata.location,
            label,
        )

    def _commit(self, version: Any, change: TableCommit) -> TableReceipt:
        """Append files, remove replaced ones and set the property, in one compare-and-set."""
        removed = self._find_earlier_rows(version, change.replaces)
        table = copy.copy(version.table)
        specs = [_SpecAsInJava(*spec.fields, spec_id=spec.spec_id) for spec in table.metadata.partition_specs]
        table.metadata = table.metadata.model_copy(update={"partition_specs": specs})
        transaction = table.transaction()
        update = transaction.update_snapshot(
            snapshot_properties={**change.summary, PROPERTY: self._property},
            branch=self._sink.branch or MAIN,
        )
        append = update.overwrite() if removed else update.fast_append()
        # As in Java. pyiceberg would use the codec of Avro data files, and fails on unknown names.
        append._compression = "gzip"  # noqa: SLF001
        added = [pickle.loads(file.data) for file in change.files]  # noqa: S301 - tasks of this run made them
        paths = [file.file_path for file in added]
        inputs = map(table.io.new_input, paths)
        present = ExecutorFactory.get_or_create().map(lambda file: file.exists(), inputs)
        self._refuse_missing_files(paths, list(present))
        for file in added:
            append.append_data_file(file)
        for old in removed:
            append.delete_data_file(old)
        append.commit()  # into the transaction, not yet to the catalog
        receipt = change.receipt(append.snapshot_id)
        transaction.set_properties({self._property: change.published_with(receipt).to_json()})
        requirements = (
            *transaction._requirements,  # noqa: SLF001 - with the head of the branch
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=version.layout.schema_id),
            AssertDefaultSpecId(default_spec_id=version.layout.spec_id),
        )
        updates = _in_order_of_time(transaction._updates, table.metadata.last_updated_ms)  # noqa: SLF001
        try:
            table.catalog.commit_table(table, requirements, updates)
        except (BadRequestError, ForbiddenError) as error:
            if _NOT_OF_CATALOG.match(str(error)):
                raise
            if (
                isinstance(error, BadRequestError)
                and self._opened().load_table(self._sink.name) != version.table
            ):
                # After a commit to another branch the snapshot's sequence number is too low.
                raise TableMoved(self._reason(error, version)) from None
            kind = AuthorizationFailed if isinstance(error, ForbiddenError) else TableRefused
            raise kind(
                f"{self.name}: the catalog shows the table, and refuses the run's commit: "
                f"{self._reason(error, version)}"
            ) from None
        return receipt

    def _find_earlier_rows(self, version: Any, replaces: Sequence[EarlierRows]) -> list[DataFile]:
        receipts = [rows.receipt for rows in replaces]
        return files_as_added(version.table, self._sink.branch or MAIN, receipts, self._sink)

    def _hidden(self, version: Any) -> Mapping[str, object]:
        configured = {} if self._catalog is None else self._catalog.properties
        # Storage credentials that the catalog vends.
        vended = {} if version is None else version.table.io.properties
        return {**vended, **configured, **super()._hidden(version)}

    def _name_hint(self) -> str:
        if self._catalog is None or self._catalog.properties.get("type") != "sql":
            return ""
        return (
            f". A catalog in a database keeps tables under its name, which is {self._catalog.name!r} here: "
            f"see {CATALOG_NAME!r} among the connection's extras"
        )

    def _opened(self) -> Catalog:
        if self._catalog is None:
            properties = dict(self._sink.properties or {})
            # An SQL catalog finds its tables by this name.
            name = properties.pop(CATALOG_NAME, self._sink.catalog)
            kinds = [kind.value for kind in CatalogType]
            if properties.get("type", kinds[0]).lower() not in kinds:
                raise ConfigurationError(
                    f"{self.name}: its catalog has the type {properties['type']!r}, which is none of "
                    f"{', '.join(kinds)}"
                )
            try:
                self._catalog = _opened_in_time(name, properties)
            except NotInstalledError as error:
                raise ConfigurationError(f"{self.name}: {error}") from None
            except Exception as error:
                if not _is_of_properties(error):
                    raise
                raise ConfigurationError(
                    f"{self.name}: the properties of its catalog cannot be used: {self._reason(error)}"
                ) from None
            session = getattr(self._catalog, "_session", None)  # of a REST catalog
            if session is not None:
                session.request = partial(session.request, timeout=_ANSWER_SECONDS)
        return self._catalog

    def _refuse_another_branch(self, table: Table) -> None:
        branch = self._sink.branch
        if branch is not None and branch != MAIN:
            ref = table.metadata.refs.get(branch)
            if ref is None or ref.snapshot_ref_type != "branch":
                raise UnknownTable(
                    f"{self.name}: {branch!r} is {'a tag' if ref else 'not a branch of the table'}; create "
                    "the branch, or correct IcebergTable(branch=...)"
                )


def _unwritable(metadata: Any) -> Iterator[str]:
    """Yield reasons why runs cannot write a table; lazily, as later checks rely on earlier ones."""
    if metadata.format_version not in _FORMATS:
        versions = ", ".join(map(str, _FORMATS))
        yield f" has format version {metadata.format_version}; tables of versions {versions} can be written"
    kind = metadata.properties.get("write.format.default", "parquet")
    if kind.lower() != "parquet":
        yield f" wants data files in {kind} (write.format.default); parquet is written"
    if _codec(metadata.properties) not in _CODECS:
        codecs = f"{metadata.properties[_CODEC]} ({_CODEC}); written are {', '.join(_CODECS)}"
        yield f" wants data files compressed by {codecs}"
    if (reason := unwritable_properties(metadata.schema(), _for_files(metadata.properties))) is not None:
        yield f": no data file can be written with its columns and properties: {reason}"
    if (reason := unwritable_partitions(metadata)) is not None:
        yield f": its partition spec cannot be written: {reason}"


def _opened_in_time(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return a catalog, whose constructor requests its configuration and a token.

    In a thread, which stays if the catalog never answers: pyiceberg has no time-out for these requests.

    :raises TimeoutError: there is no answer.
    """
    opened = in_daemon_thread(f"catalog {name}", partial(load_catalog, name, **properties))
    if not wait([opened], _ANSWER_SECONDS).done:
        raise TimeoutError(f"no answer in {_ANSWER_SECONDS} s")
    return opened.result()


def _codec(properties: Mapping[str, str]) -> str:
    """Return the codec of data files, which engines write in upper or lower case."""
    return properties.get(_CODEC, "zstd").lower()


def _for_files(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return a table's properties with the codec in lower case, the only form that pyiceberg accepts."""
    return {**properties, _CODEC: _codec(properties)}


def _in_order_of_time(updates: Sequence[TableUpdate], last_updated_ms: int) -> tuple[TableUpdate, ...]:
    """Return the updates with a snapshot later than the table, even if this host's clock is behind.

    Iceberg's Java library neither commits nor reads snapshots that are more than a minute out of order.
    """

    def later(update: TableUpdate) -> TableUpdate:
        if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms > last_updated_ms:
            return update
        # Not the equal timestamp: pyiceberg would replace it by the current time.
        snapshot = update.snapshot.model_copy(update={"timestamp_ms": last_updated_ms + 1})
        return update.model_copy(update={"snapshot": snapshot})

    return tuple(map(later, updates))


def _is_of_properties(error: Exception) -> bool:
    """Return whether an error is caused by the catalog's properties: an invalid address or value.

    requests raises a ValueError for an invalid address; those of pydantic and JSON concern a response. A
    catalog in PostgreSQL may also refuse the login.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "OperationalError" in kinds:
        return is_refused_login(str(error))
    # The last one is sqlalchemy's.
    return not kinds & {"ValidationError", "JSONDecodeError"} and bool(
        kinds & {"ValueError", "ArgumentError"}
    )
