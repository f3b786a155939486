"""Delta Lake tables as sinks: which table a run appends to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import urlsplit

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import NONE, TEXT
from airflow_eos.model.sink_table import SinkTable

STORES = {"s3": "S3", "s3a": "S3", "gs": "GCS", "az": "Azure", "abfs": "Azure", "abfss": "Azure"}
"""Object stores with an atomic put-if-absent, by the scheme of a table's URI."""
_PREFIX = "delta:"


@dataclass(frozen=True, slots=True)
class DeltaTable(SinkTable):
    """A Delta Lake table that a run appends to.

    ``process`` returns the columns of the table. Each record is in the table's history once, whatever dies or
    is started twice; the table and Kafka become visible one after the other.

    ::

        ReadProcessWriteOperator(..., sink=DeltaTable("s3://lake/flights", connection="delta_default"))

    :param uri: URI of the table's folder: ``s3://``, ``s3a://``, ``gs://``, ``az://``, ``abfs://``, ``abfss://``,
        or an absolute path in a file system that driver and executors share.
    :param connection: Airflow connection with the credentials of the object store; None: driver and executors
        have their own (instance roles, environment).
    :param reprocess: what a run with ``on_committed="reprocess"`` does with the rows of the committed run:
        ``append`` leaves them, ``replace`` removes them in the commit that appends the new ones, or is
        refused where they are not in the table as they were written.
    :param properties: storage options in deltalake's names, where no connection has them; never shown.
    :raises ConfigurationError: naming parameter and value.
    """

    KIND: ClassVar[str] = "delta"

    uri: str
    connection: str | None = "delta_default"

    def __post_init__(self) -> None:
        TEXT.check("DeltaTable(uri=...)", self.uri)
        (TEXT | NONE).check("DeltaTable(connection=...)", self.connection)
        self._check_reprocess()
        parts = urlsplit(self.uri)
        if parts.password is not None or (parts.query and parts.scheme in STORES):
            raise ConfigurationError(
                "DeltaTable(uri=...) holds a password or parameters, as a token: put it into the connection"
            )
        is_local = parts.scheme in ("", "file") and not parts.netloc and parts.path.startswith("/")
        if not is_local and not (parts.scheme in STORES and parts.netloc):
            raise ConfigurationError(
                f"DeltaTable(uri=...) must be the folder of a table as 's3://lake/flights' (with "
                f"{', '.join(STORES)}), or an absolute path, got {self.uri!r}"
            )

    @property
    def store(self) -> str | None:
        """Return the kind of object store, None for a file system."""
        return STORES.get(urlsplit(self.uri).scheme)

    @property
    def connection_id(self) -> str:
        """Return the connection of the object store; the default one if the table has none."""
        return self.connection or "delta_default"

    @property
    def dataset(self) -> tuple[str, str]:
        """Return bucket and folder, as OpenLineage names what lies in object stores and file systems."""
        if self.store is None:
            return "file", self.uri.removeprefix("file://").rstrip("/")
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")

    @classmethod
    def named(cls, text: str) -> DeltaTable | None:
        """Return the table with this name, as in run records; None if it is of another kind.

        A name does not contain the connection: the default one for an object store, none for a file system.
        """
        if not text.startswith(_PREFIX):
            return None
        table = cls(text.removeprefix(_PREFIX))
        return table if table.store is not None else replace(table, connection=None)

    def __str__(self) -> str:
        return f"{_PREFIX}{self.uri.rstrip('/')}"
