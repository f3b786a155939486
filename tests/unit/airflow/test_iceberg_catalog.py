"""A connection of type iceberg as the properties of a catalog."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.log import redact

from airflow_eos.exceptions import ConfigurationError, UnknownTable
from airflow_eos.hooks import masked_connection
from airflow_eos.hooks.iceberg_catalog import catalog_properties
from airflow_eos.hooks.table_connections import with_connection
from airflow_eos.model.iceberg_table import IcebergTable


@pytest.fixture
def connection(monkeypatch):
    def make(**values):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "iceberg", **values}))

    return make


def test_a_rest_catalog_is_its_host_and_credential(connection):
    """Fields are those of the Iceberg provider; extras are properties of the catalog."""
    connection(
        host="http://catalog:8181", login="id", password="secret", extra=json.dumps({"warehouse": "lake"})
    )
    assert catalog_properties("lake") == {
        "type": "rest",
        "uri": "http://catalog:8181",
        "credential": "id:secret",
        "warehouse": "lake",
    }


def test_other_catalogs_are_named_by_extras(connection):
    """All catalogs that pyiceberg supports."""
    connection(extra=json.dumps({"type": "sql", "uri": "sqlite:////tmp/c.db", "warehouse": "file:///tmp"}))
    sink = with_connection(IcebergTable("db.t", catalog="lake"))
    assert sink.properties == {"type": "sql", "uri": "sqlite:////tmp/c.db", "warehouse": "file:///tmp"}
    assert "sqlite" not in repr(sink)
    assert with_connection(None) is None


SECRETS = {
    "adls.account-key": "account",
    "adls.connection-string": "DefaultEndpointsProtocol=https;AccountKey=string",
    "adls.sas-token": "sas",
    "gcs.oauth2.token": "oauth2",
    "header.Authorization": "Bearer header",
    "s3.access-key-id": "id-of-the-key",
    "s3.secret-access-key": "secret-of-the-key",
    "s3.session-token": "session",
    "token": "rest",
    "uri": "postgresql://user:of-the-catalog@db/lake",
    "warehouse": "abfss://c.dfs.example/lake?sv=1&sig=signature",
}


def test_secrets_of_storage_and_catalog_are_masked_in_logs(connection, monkeypatch):
    """By all the names that pyiceberg uses; values that locate the storage stay readable."""
    masked = []
    monkeypatch.setattr(masked_connection, "mask_secret", masked.append)
    plain = {"type": "sql", "s3.endpoint": "http://storage:9000", "s3.region": "eu-central-1"}
    connection(extra=json.dumps({**plain, **SECRETS}))
    assert catalog_properties("lake") == {**plain, **SECRETS}
    assert sorted(masked) == sorted(SECRETS.values())


def test_a_secret_is_masked_as_errors_spell_it(connection):
    """By Airflow itself: also a token with a newline, which a library escapes."""
    connection(extra=json.dumps({"uri": "http://127.0.0.1:1", "token": "of-two\nlines-é\n"}))
    catalog_properties("lake")
    shown = redact(r"header b'Bearer of-two\nlines-\xe9\n' 'of-two\nlines-é\n'")
    assert shown == r"header b'Bearer ***\n' '***\n'"


def test_a_connection_that_names_no_catalog_is_refused(connection):
    """The error has its id, and what is missing."""
    with pytest.raises(UnknownTable, match=r"catalog='lake'.: Airflow found no connection 'lake'"):
        catalog_properties("lake")
    connection()
    with pytest.raises(ConfigurationError, match="'lake' has neither a host nor 'uri'"):
        catalog_properties("lake")
    connection(host="http://catalog", extra=json.dumps({"auth": {"type": "google"}}))
    with pytest.raises(ConfigurationError, match="'lake': its extra 'auth' is not one value"):
        catalog_properties("lake")


@pytest.mark.parametrize(
    "given",
    [{"name": "db.orders@eu"}, {"name": "db.t", "catalog": "a/b"}, {"name": "db.t@b", "branch": "c"}],
)
def test_a_table_that_records_would_name_as_another_one_is_refused(given):
    """`airflow eos dismiss` would look for the table of the record, and take a wrong one for missing."""
    with pytest.raises(ConfigurationError, match="reads as another one"):
        IcebergTable(**given)


@pytest.mark.parametrize("branch", [None, "b", "a@b/c"])
def test_a_record_names_the_table(branch):
    """Whatever the branch's name."""
    table = IcebergTable("db.a/b.t", catalog="lake", branch=branch)
    assert IcebergTable.named(str(table)) == table


@pytest.mark.parametrize("name", ["flights", "db.", ".t", "", 5])
def test_a_table_has_a_namespace(name):
    """A name without one is refused by the constructor."""
    with pytest.raises(ConfigurationError, match=r"name=\.\.\."):
        IcebergTable(name)
