"""A connection of type postgres as parameters of libpq."""

from __future__ import annotations

import json

import pytest

from airflow_eos.exceptions import ConfigurationError, UnknownTable
from airflow_eos.hooks.table_connections import with_connection
from airflow_eos.model.postgres_table import PostgresTable

TABLE = PostgresTable("public.t", connection="warehouse")


@pytest.fixture
def connection(monkeypatch):
    def make(**values):
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "postgres", **values}))

    return make


def test_the_fields_are_parameters_of_libpq(connection):
    """As in Airflow's PostgreSQL hook; parameters that only the hook uses are omitted."""
    extra = {"sslmode": "verify-full", "connect_timeout": 5, "cursor": "dictcursor", "iam": 0}
    connection(
        host="db", port=5433, schema="shop", login="loader", password="s3cret", extra=json.dumps(extra)
    )
    properties = {
        "host": "db",
        "port": "5433",
        "dbname": "shop",
        "user": "loader",
        "password": "s3cret",
        "sslmode": "verify-full",
        "connect_timeout": "5",
    }
    sink = with_connection(TABLE)
    assert sink.properties == properties
    assert sink.has_secrets
    assert "s3cret" not in repr(sink)


def test_passwords_are_masked(connection, monkeypatch):
    """In all logs of a task."""
    masked = []
    monkeypatch.setattr("airflow_eos.hooks.masked_connection.mask_secret", masked.append)
    connection(host="db", login="loader", password="s3cret", extra=json.dumps({"sslpassword": "pin"}))
    with_connection(TABLE)
    assert masked == ["s3cret", "pin"]


def test_a_connection_that_cannot_be_used_is_refused(connection):
    """The error has its id, and the problem."""
    with pytest.raises(UnknownTable, match=r"'warehouse'.: Airflow found no connection 'warehouse'"):
        with_connection(TABLE)
    connection(host="db", extra=json.dumps({"iam": True}))
    with pytest.raises(ConfigurationError, match="'warehouse' has the extra 'iam'"):
        with_connection(TABLE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "flights"}, "must be schema and table"),
        ({"name": "a.b.c"}, "must be schema and table"),
        ({"name": "public.in/out"}, "must be without '/'"),
        ({"name": ""}, r"name=\.\.\."),
        ({"connection": ""}, r"connection=\.\.\."),
        ({"mode": "upsrt"}, "did you mean 'upsert'"),
        ({"mode": "upsert"}, "needs the columns of a unique key"),
        ({"key": ["id"]}, "mode='append' has none"),
        ({"mode": "upsert", "key": "id"}, "must be a list of column names"),
        ({"mode": "upsert", "key": ["id", "id"]}, "names a column twice"),
        ({"mode": "upsert", "key": [5]}, "must be a list of column names"),
    ],
)
def test_a_table_is_refused_where_it_is_written(fields, message):
    """The constructor's error has parameter and value."""
    with pytest.raises(ConfigurationError, match=message):
        PostgresTable(**{"name": "public.t", **fields})
