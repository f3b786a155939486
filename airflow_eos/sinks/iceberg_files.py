"""Writes data files of an Iceberg table in Spark tasks, partitioned and compressed as the table says."""

from __future__ import annotations

import functools
import json
import pickle
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_eos.exceptions import SendError
from airflow_eos.model.table import DataFileMade
from airflow_eos.sinks.columns import check_types, table_columns
from airflow_eos.sinks.executor_extra import executor_extra
from airflow_eos.sinks.redaction import redacted

_MOST_IN_MEMORY = 128 << 20
_TARGET = "write.target-file-size-bytes"


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """Implements ``airflow_eos.ports.TableWriter``; pickled into tasks, with the storage's credentials.

    :param name: the table, in words.
    :param metadata: JSON of the table's metadata, without its history.
    :param properties: of the table's file storage.
    :param label: first part of the files' names.
    """

    name: str
    metadata: str = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    location: str
    label: str

    def columns(self, result: Any) -> pa.Table | None:
        """Return the rows of an Arrow process in the table's columns."""
        return table_columns(result, self._schema(), self.name)

    def check(self, given: pa.Schema) -> None:
        """Compare columns and types before anything is read."""
        check_types(given, self._schema(), self.name)

    def write(self, table: pa.Table) -> Sequence[DataFileMade]:
        """Write rows of the table's columns.

        Names of data files are never used twice: what died leaves files that no commit names.

        :raises SendError: the storage refused a file.
        """
        metadata = self._metadata()
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        try:
            files = _dataframe_to_data_files(
                table_metadata=metadata,
                df=table,
                io=load_file_io(dict(self.properties), self.location),
                # It only becomes a part of the names.
                write_uuid=f"{self.label}-{uuid.uuid4()}",
            )
            return [DataFileMade(pickle.dumps(f), f.record_count, f.file_size_in_bytes) for f in files]
        except Exception as error:  # noqa: BLE001 - of any storage
            reason = redacted(f"{type(error).__name__}: {error}", self.properties)
            raise SendError(f"{self.name}: a data file cannot be written: {reason}") from None

    @property
    def flush_bytes(self) -> int:
        """Bytes of rows that make up a file; many tasks hold as much at once."""
        wanted = json.loads(self.metadata).get("properties", {}).get(_TARGET)
        return min(int(wanted), _MOST_IN_MEMORY) if wanted else _MOST_IN_MEMORY

    def _metadata(self) -> Any:
        with executor_extra(self.name, "pyiceberg", "iceberg"):
            return _parsed(self.metadata)

    def _schema(self) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self._metadata().schema(), include_field_ids=False)


@functools.lru_cache(maxsize=4)
def _parsed(metadata: str) -> Any:
    from pyiceberg.table.metadata import TableMetadataUtil

    return TableMetadataUtil.parse_raw(metadata)
