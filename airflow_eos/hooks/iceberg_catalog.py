"""Reads the properties of an Iceberg catalog from an Airflow connection of type ``iceberg``.

========================  ==============================================================================
connection                property of the catalog in pyiceberg
========================  ==============================================================================
host                      ``uri``
login, password           ``credential``, as ``login:password``
extra                     unchanged: ``type`` (default: ``rest``), ``warehouse``, ``s3.endpoint``, ``token``
extra ``catalog_name``    name of the catalog, if tables belong to one (``type`` ``sql``); default: the
                          connection's id
========================  ==============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks.masked_connection import masked_properties

if TYPE_CHECKING:
    from airflow.sdk import Connection


def catalog_properties(conn_id: str) -> dict[str, str]:
    """Return a catalog's properties from its connection; see the module. Secrets are masked in logs.

    :raises UnknownTable: there is no such connection.
    :raises ConfigurationError: the connection does not name a catalog.
    """
    named_by = f"IcebergTable(catalog={conn_id!r})"
    return masked_properties(conn_id, _properties, named_by=named_by, advice="add one of type iceberg")


def _properties(connection: Connection) -> dict[str, str]:
    properties: dict[str, str] = {"type": "rest"}
    if connection.host:
        properties["uri"] = connection.host
    if connection.login or connection.password:
        properties["credential"] = ":".join(filter(None, (connection.login, connection.password)))
    extra = connection.extra_dejson
    nested = [name for name, value in extra.items() if isinstance(value, (dict, list))]
    if nested:
        raise ConfigurationError(
            f"connection {connection.conn_id!r}: its extra {nested[0]!r} is not one value. Give it in "
            f"pyiceberg's own configuration, as a property of the catalog {connection.conn_id!r}"
        )
    properties.update({name: str(value) for name, value in extra.items()})
    if properties["type"] in ("rest", "sql") and "uri" not in properties:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has neither a host nor 'uri' among its extras: it names no "
            f"catalog of type {properties['type']}"
        )
    return properties
