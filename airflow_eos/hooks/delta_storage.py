"""The storage options of a Delta Lake table, from an Airflow connection.

===================  ==================================  ==============================================
connection           ``s3://``, ``s3a://``               ``az://``, ``abfs://``, ``abfss://``
===================  ==================================  ==============================================
host                 ``aws_endpoint_url``                ``azure_endpoint``
login                ``aws_access_key_id``               ``azure_storage_account_name``
password             ``aws_secret_access_key``           ``azure_storage_account_key``
extra                as it is: ``aws_region``            as it is: ``azure_tenant_id``
===================  ==================================  ==============================================

For ``gs://`` and file systems the extras are all: ``google_service_account_key``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks.masked_connection import masked_properties

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_eos.model.delta_table import DeltaTable

_FIELDS = {
    "S3": {
        "host": "aws_endpoint_url",
        "login": "aws_access_key_id",
        "password": "aws_secret_access_key",
    },
    "Azure": {
        "host": "azure_endpoint",
        "login": "azure_storage_account_name",
        "password": "azure_storage_account_key",
    },
}


def storage_options(sink: DeltaTable) -> dict[str, str]:
    """Return the storage options from a table's connection; see the module. Secrets are masked.

    :raises UnknownTable: there is no such connection.
    :raises ConfigurationError: a field of it means nothing to the store.
    """
    if sink.connection is None:
        return {}
    return masked_properties(
        sink.connection,
        partial(_options, sink),
        named_by=f"DeltaTable(connection={sink.connection!r})",
        advice="add one, or give connection=None (a command: --storage none) where driver and executors have "
        "credentials of their own",
    )


def _options(sink: DeltaTable, connection: Connection) -> dict[str, str]:
    names = _FIELDS.get(sink.store or "", {})
    options: dict[str, str] = {}
    for field in ("host", "login", "password"):
        value = getattr(connection, field)
        if not value:
            continue
        if field not in names:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has a {field}, which says nothing about {sink.uri!r}: "
                "give storage options among its extras"
            )
        options[names[field]] = value
    options.update({name: str(value) for name, value in connection.extra_dejson.items()})
    return options
