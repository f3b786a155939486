"""Apache Iceberg tables as sinks: which table a run appends to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import NONE, TEXT
from airflow_eos.model.sink_table import SinkTable

MAIN = "main"
"""The branch of a table that names none."""
_NAME = re.compile(r"iceberg:(?P<catalog>[^/]+)/(?P<name>[^@]+)(@(?P<branch>.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class IcebergTable(SinkTable):
    """An Apache Iceberg table that a run appends to.

    ``process`` returns the columns of the table. Each record is in the table's history once, whatever dies or
    is started twice; the table and Kafka become visible one after the other.

    ::

        ReadProcessWriteOperator(..., sink=IcebergTable("db.flights", catalog="iceberg_default"))

    :param name: namespace and table, separated by dots.
    :param catalog: in Airflow: connection of type ``iceberg``; elsewhere: name of a catalog of pyiceberg's
        configuration.
    :param branch: append to this branch, which exists; None: to the main one.
    :param reprocess: what a run with ``on_committed="reprocess"`` does with the rows of the committed run:
        ``append`` leaves them, ``replace`` removes them in the commit that appends the new ones, or is
        refused where they are not in the table as they were written.
    :param properties: of the catalog, in pyiceberg's names, where no connection or configuration names them;
        never shown.
    :raises ConfigurationError: naming parameter and value.
    """

    KIND: ClassVar[str] = "iceberg"

    name: str
    catalog: str = "iceberg_default"
    branch: str | None = None

    def __post_init__(self) -> None:
        TEXT.check("IcebergTable(name=...)", self.name)
        parts = self.name.split(".")
        if len(parts) < 2 or not all(part.strip() for part in parts):  # noqa: PLR2004 - namespace and table
            raise ConfigurationError(
                f"IcebergTable(name=...) must be namespace and table, as 'db.flights', got {self.name!r}"
            )
        TEXT.check("IcebergTable(catalog=...)", self.catalog)
        (TEXT | NONE).check("IcebergTable(branch=...)", self.branch)
        match = _NAME.fullmatch(str(self))
        if match is None or (match["catalog"], match["name"], match["branch"]) != (
            self.catalog,
            self.name,
            self.branch,
        ):
            raise ConfigurationError(
                f"IcebergTable(...): records name a table as iceberg:catalog/name@branch, and {str(self)!r} "
                "reads as another one; the catalog must be without '/', the name without '@'"
            )
        self._check_reprocess()

    @property
    def has_secrets(self) -> bool:
        """Whether tasks receive credentials: from the properties, or issued by a REST catalog."""
        properties = self.properties or {}
        return properties.get("type", "rest") == "rest" or super(IcebergTable, self).has_secrets

    @property
    def connection_id(self) -> str:
        """Return the connection of the catalog."""
        return self.catalog

    @property
    def dataset(self) -> tuple[str, str]:
        """Return the catalog's connection as the namespace, and the table's full name."""
        return f"iceberg://{self.catalog}", self.name

    @property
    def branch_name(self) -> str | None:
        """Return the branch."""
        return self.branch

    @classmethod
    def named(cls, text: str) -> IcebergTable | None:
        """Return the table with this name, as in run records; None if it is of another kind."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(match["name"], match["catalog"], match["branch"])

    def __str__(self) -> str:
        return f"iceberg:{self.catalog}/{self.name}" + (f"@{self.branch}" if self.branch else "")
