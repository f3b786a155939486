"""The properties of an Iceberg catalog, from an Airflow connection of type ``iceberg``.

========================  ==============================================================================
connection                property of the catalog, as pyiceberg has it
========================  ==============================================================================
host                      ``uri``
login, password           ``credential``, as ``login:password``
extra                     as it is: ``type`` (default: ``rest``), ``warehouse``, ``s3.endpoint``, ``token``
========================  ==============================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos.model.table import IcebergTable

_SECRET_PARTS = ("credential", "token", "secret", "password", "key")


def with_connection(sink: IcebergTable | None) -> IcebergTable | None:
    """Return a sink with the properties of its catalog's connection, which are masked in logs.

    :raises ConfigurationError: there is no such connection, or it names no catalog.
    """
    return None if sink is None else replace(sink, properties=catalog_properties(sink.catalog))


def catalog_properties(conn_id: str) -> dict[str, str]:
    """Return what a connection says of a catalog; see the module."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"IcebergTable(catalog={conn_id!r}) names a connection that does not exist: add one of type "
            "iceberg"
        ) from error
    properties: dict[str, str] = {"type": "rest"}
    if connection.host:
        properties["uri"] = connection.host
    if connection.login or connection.password:
        properties["credential"] = ":".join(filter(None, (connection.login, connection.password)))
    properties.update({name: str(value) for name, value in connection.extra_dejson.items()})
    if properties["type"] in ("rest", "sql") and "uri" not in properties:
        raise ConfigurationError(
            f"connection {conn_id!r} has neither a host nor 'uri' among its extras: it names no catalog of "
            f"type {properties['type']}"
        )
    for name, value in properties.items():
        # An address may hold a password.
        if any(part in name for part in _SECRET_PARTS) or "@" in value:
            mask_secret(value)
    return properties
