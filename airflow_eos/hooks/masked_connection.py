"""Reads Airflow connections: names one that is missing, masks the secrets of a table's in logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import UnknownTable
from airflow_eos.model.sink_table import secrets_of
from airflow_eos.redaction import spellings

if TYPE_CHECKING:
    from airflow.sdk import Connection


def connection_missing(conn_id: str) -> AirflowNotFoundException:
    """Return the error for a connection that is missing, or that Airflow could not read now."""
    return AirflowNotFoundException(
        f"Airflow found no connection {conn_id!r}. If its API server or a secrets backend did not answer "
        "just now, another try finds it"
    )


def find_connection(conn_id: str) -> Connection:
    """Return a connection; raises :func:`connection_missing`."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise connection_missing(conn_id) from error


def masked_properties(
    conn_id: str, read: Callable[[Connection], dict[str, str]], *, named_by: str, advice: str
) -> dict[str, str]:
    """Return the properties of a connection. Secrets are masked in logs.

    :param read: returns the properties from a connection's fields and extras.
    :param named_by: the parameter that names the connection, for messages.
    :param advice: for the error if there is no such connection.
    :raises UnknownTable: there is none, or Airflow's API server did not answer: in a task, Airflow raises the
        same error for both.
    """
    try:
        connection = find_connection(conn_id)
    except AirflowNotFoundException as error:
        raise UnknownTable(f"{named_by}: {error}; else {advice}") from error
    properties = read(connection)
    for value in secrets_of(properties).values():
        for spelling in spellings(value):
            mask_secret(spelling)
    return properties
