"""The base of all tables that can be a run's sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from airflow_eos.model.kinds import word

Reprocessing = Literal["append", "replace"]
_SECRET_PARTS = (
    "auth",  # header.Authorization
    "connection-string",
    "credential",
    "key",
    "password",
    "secret",
    "token",
)


def is_secret(name: str, value: str) -> bool:
    """Return whether a property of a table's connection is kept out of logs."""
    # An address may contain a password, or a shared access signature.
    return any(part in name.lower() for part in _SECRET_PARTS) or "@" in value or "sig=" in value


def secrets_of(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return those properties of a table's connection that are kept out of logs."""
    return {name: value for name, value in (properties or {}).items() if is_secret(name, value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTable(ABC):
    """A table that a run writes to, in place of topics: one subclass for each kind of table.

    A new kind is a subclass in a module of its own, and a case in ``spec_json`` (JSON form of a run),
    ``sinks.opening`` (its writer), ``hooks.table_connections`` (its secrets) and ``operations.table_checks``
    (checks of the doctor).

    :param reprocess: what a run with ``on_committed="reprocess"`` does with the rows of the committed run.
    :param properties: of the connection, secrets included, where no Airflow connection has them; never shown.
    """

    KIND: ClassVar[str]
    """Short name: of the extra that installs what the kind needs, and in the JSON form of a run."""

    reprocess: Reprocessing = "append"
    properties: Mapping[str, str] | None = field(default=None, repr=False, compare=False)

    def _check_reprocess(self) -> None:
        word(*get_args(Reprocessing)).check(f"{type(self).__name__}(reprocess=...)", self.reprocess)

    @property
    def has_secrets(self) -> bool:
        """Whether credentials go to the tasks that write the table."""
        return bool(secrets_of(self.properties))

    @property
    @abstractmethod
    def connection_id(self) -> str:
        """Return the Airflow connection that has the properties."""

    @property
    @abstractmethod
    def dataset(self) -> tuple[str, str]:
        """Return namespace and name of the table for OpenLineage."""

    @property
    def branch_name(self) -> str | None:
        """Return which branch of the table runs write to; None: the main one, or there are no branches."""
        return None

    @abstractmethod
    def __str__(self) -> str:
        """Return the table's name, without secrets, such as ``iceberg:catalog/db.flights``."""
