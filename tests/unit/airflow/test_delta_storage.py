"""A connection as storage options of a Delta Lake table, and the stores where such a table may be."""

from __future__ import annotations

import json

import pytest

from airflow_eos.cli import commands
from airflow_eos.cli.main import parser
from airflow_eos.exceptions import ConfigurationError, UnknownTable
from airflow_eos.hooks import masked_connection
from airflow_eos.hooks.table_connections import with_connection
from airflow_eos.model.delta_table import DeltaTable


@pytest.fixture
def connection(monkeypatch):
    def make(**values):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "generic", **values}))

    return make


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (
            "s3://lake/t",
            {
                "aws_endpoint_url": "http://store:9000",
                "aws_access_key_id": "user",
                "aws_secret_access_key": "secret",
                "aws_region": "eu-west-1",
            },
        ),
        (
            "abfss://lake@account.dfs.core.windows.net/t",
            {
                "azure_endpoint": "http://store:9000",
                "azure_storage_account_name": "user",
                "azure_storage_account_key": "secret",
                "aws_region": "eu-west-1",
            },
        ),
    ],
)
def test_a_connection_has_the_options_of_its_store(connection, uri, expected):
    """The scheme of the table's URI decides; extras are passed on unchanged."""
    connection(host="http://store:9000", login="user", password="secret", extra='{"aws_region": "eu-west-1"}')
    sink = with_connection(DeltaTable(uri, connection="lake"))
    assert sink.properties == expected
    assert "secret" not in repr(sink)


def test_a_command_does_without_a_connection_where_runs_do(monkeypatch):
    """For example on a host with its own role."""
    monkeypatch.delenv("AIRFLOW_CONN_DELTA_DEFAULT", raising=False)
    options = parser().parse_args(
        ["doctor", "--bootstrap-servers", "h:1", "--table", "delta:s3://lake/t", "--storage", "none"]
    )
    options.connected = with_connection
    (name,) = options.table
    unconnected = commands._table(name, options)
    assert (unconnected.connection, unconnected.properties) == (None, {})


@pytest.mark.parametrize(("name", "has_secrets"), [("AWS_SECRET_ACCESS_KEY", True), ("aws_region", False)])
def test_credentials_of_a_store_count_for_require_encrypted_spark(name, has_secrets):
    """They are sent to the tasks that write the files."""
    assert DeltaTable("s3://lake/t", properties={name: "geheim"}).has_secrets is has_secrets


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "aws_session_token", "azure_storage_sas_token"])
def test_secrets_among_the_extras_are_masked(connection, monkeypatch, name):
    """Options may be in capital letters; values that are not secrets stay readable."""
    masked = []
    monkeypatch.setattr(masked_connection, "mask_secret", masked.append)
    connection(extra=json.dumps({name: "geheim", "aws_region": "eu-west-1"}))
    with_connection(DeltaTable("s3://lake/t", connection="lake"))
    assert masked == ["geheim"]


def test_what_says_nothing_to_the_store_is_refused(connection):
    """An ignored password would seem to be used."""
    connection(password="secret")
    with pytest.raises(ConfigurationError, match="'lake' has a password, which says nothing about 'gs://"):
        with_connection(DeltaTable("gs://lake/t", connection="lake"))
    with pytest.raises(UnknownTable, match=r"connection='nowhere'.: Airflow found no connection 'nowhere'"):
        with_connection(DeltaTable("gs://lake/t", connection="nowhere"))
    assert with_connection(DeltaTable("gs://lake/t", connection=None)).properties == {}


@pytest.mark.parametrize(
    "uri",
    ["flights", "lake/flights", "", 5, "s3://", "s3:///t", "file://host/t", "hdfs://lake/t", "memory:///t"],
)
def test_a_table_lies_where_commits_are_put_if_absent(uri):
    """Other stores are refused by the constructor, which lists the possible ones."""
    with pytest.raises(ConfigurationError, match=r"uri=\.\.\."):
        DeltaTable(uri)


@pytest.mark.parametrize(
    "uri", ["s3://user:geheim@lake/t", "abfss://lake@a.dfs.core.windows.net/t?sig=geheim"]
)
def test_a_password_in_the_address_is_refused_and_not_shown(uri):
    """Logs, records and lineage contain the address."""
    with pytest.raises(ConfigurationError) as refused:
        DeltaTable(uri)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "word", "dataset"),
    [
        ("s3://lake/raw/flights/", "delta:s3://lake/raw/flights", ("s3://lake", "raw/flights")),
        ("/data/flights#1", "delta:/data/flights#1", ("file", "/data/flights#1")),
        ("file:///data/flights", "delta:file:///data/flights", ("file", "/data/flights")),
    ],
)
def test_a_table_is_named_by_its_folder(uri, word, dataset):
    """In messages, in the INTENT, and for OpenLineage."""
    assert (str(DeltaTable(uri)), DeltaTable(uri).dataset) == (word, dataset)
