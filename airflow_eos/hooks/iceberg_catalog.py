"""The properties of an Iceberg catalog, from an Airflow connection of type ``iceberg``.

========================  ==============================================================================
connection                property of the catalog, as pyiceberg has it
========================  ==============================================================================
host                      ``uri``
login, password           ``credential``, as ``login:password``
extra                     as it is: ``type`` (default: ``rest``), ``warehouse``, ``s3.endpoint``, ``token``
extra ``catalog_name``    name of the catalog, where tables belong to it (``type`` ``sql``); default: the
                          connection's id
========================  ==============================================================================
"""

from __future__ import annotations

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.sink_table import is_secret


def catalog_properties(conn_id: str) -> dict[str, str]:
    """Return what a connection says of a catalog; see the module. Secrets are masked in logs.

    :raises ConfigurationError: there is no such connection, or it names no catalog.
    """
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
        if is_secret(name, value):
            mask_secret(value)
    return properties
