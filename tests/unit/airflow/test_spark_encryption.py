"""Credentials are sent to executors inside tasks: sending them unencrypted is a warning, or refused."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.operations.executors import credentials_on_the_way
from airflow_eos.operators.spark_encryption import check_encryption
from airflow_eos.spark.encryption import local_defaults, settings_in_force, way_in_clear
from airflow_eos.wire.client_config import ClientConfig

OPEN = {"spark.master": "spark://master:7077"}
LOCAL = {"spark.master": "local[2]", "spark.authenticate": "true"}
SECRET = ClientConfig.of({"bootstrap.servers": "a:1", "sasl.password": "hunter2"})


@pytest.mark.parametrize(
    "spark",
    [
        {},
        {"spark.master": "local[*]", "spark.authenticate": "true"},
        {"spark.master": "local-cluster[2,1,1024]", "spark.authenticate": "true"},
        {**OPEN, "spark.authenticate": "true", "spark.network.crypto.enabled": "true"},
        {**OPEN, "spark.ssl.rpc.enabled": "true"},
        {"spark.remote": "sc://spark.example.com:443/;use_ssl=true"},
        {"spark.remote": "sc://spark.example.com/;user_id=me;token=abc"},
        {"spark.remote": "sc://127.0.0.1:15002"},
        {"spark.remote": "sc://localhost/;user_id=me"},
        {"spark.remote": "sc://localhost", "spark.master": "local[*]", "spark.authenticate": "true"},
    ],
)
def test_what_is_encrypted_or_stays_here(spark: dict[str, str]) -> None:
    """Spark's documented settings, and a token, with which the Connect client always uses TLS.

    With a local master nothing is sent, and the driver's ports require a secret.
    """
    assert way_in_clear(spark) is None


@pytest.mark.parametrize(
    ("spark", "way"),
    [
        (OPEN, "Spark's RPC at spark://master:7077"),
        ({"spark.master": "yarn"}, "Spark's RPC at yarn"),
        ({**OPEN, "spark.authenticate": "true"}, "Spark's RPC"),
        ({**OPEN, "spark.network.crypto.enabled": "true"}, "Spark's RPC"),
        ({"spark.remote": "sc://spark.example.com:15002/;user_id=me"}, "Spark Connect to spark.example.com"),
        ({"spark.remote": "sc://10.0.0.7/;use_ssl=false"}, "Spark Connect to 10.0.0.7"),
        ({"spark.remote": "sc://localhost", **OPEN}, "Spark's RPC at spark://master:7077"),
        ({"spark.master": "local[*]"}, "Spark's RPC at local[*], without spark.authenticate"),
        ({"spark.master": "local[2]", "spark.authenticate": "false"}, "Spark's RPC at local[2], without"),
        ({"spark.master": "local-cluster[2,1,1024]"}, "Spark's RPC at local-cluster[2,1,1024], without"),
        ({"spark.remote": "sc://localhost", "spark.master": "local[*]"}, "Spark's RPC at local[*], without"),
    ],
)
def test_what_can_be_read_on_the_way(spark: dict[str, str], way: str) -> None:
    """Authentication alone does not encrypt, and encryption requires it."""
    assert (way_in_clear(spark) or "").startswith(way)


def test_credentials_in_clear_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It names connection and settings, but no credential; without credentials there is no warning."""
    with caplog.at_level(logging.WARNING):
        check_encryption(OPEN, ClientConfig.of({"bootstrap.servers": "a:1"}))
        assert not caplog.records
        check_encryption(OPEN, SECRET)
    assert "in clear over Spark's RPC at spark://master:7077" in caplog.text
    assert "spark.network.crypto.enabled" in caplog.text
    assert "hunter2" not in caplog.text


def test_credentials_of_a_table_are_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """Also if Kafka has none: the warning names the connection that has them."""
    kafka = ClientConfig.of({"bootstrap.servers": "a:1"})
    database = PostgresTable("s.t", connection="warehouse", properties={"host": "h", "password": "hunter2"})
    with caplog.at_level(logging.WARNING):
        check_encryption(OPEN, kafka, sink=PostgresTable("s.t", properties={"host": "h"}))
        assert not caplog.records
        check_encryption(OPEN, kafka, sink=database)
        check_encryption(
            OPEN, SECRET, sink=IcebergTable("a.b", properties={"s3.secret-access-key": "hunter2"})
        )
    assert "credentials of the table's connection 'warehouse' travel in clear" in caplog.text
    assert "the Kafka connection and the table's connection 'iceberg_default' travel" in caplog.text
    assert "hunter2" not in caplog.text


def test_they_are_refused_where_the_configuration_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been sent by then."""
    monkeypatch.setenv("AIRFLOW__EOS__REQUIRE_ENCRYPTED_SPARK", "True")
    with pytest.raises(ConfigurationError, match="require_encrypted_spark"):
        check_encryption(OPEN, SECRET)
    check_encryption({"spark.master": "local[2]", **local_defaults("local[2]")}, SECRET)
    with pytest.raises(ConfigurationError, match=r"local\[2\], without spark.authenticate"):
        check_encryption({"spark.master": "local[2]"}, SECRET)
    with pytest.raises(ConfigurationError, match="'postgres_default' travel in clear"):
        check_encryption(
            OPEN,
            ClientConfig.of({"bootstrap.servers": "a:1"}),
            sink=PostgresTable("s.t", properties={"password": "x"}),
        )


NO_SECRET = ClientConfig.of({"bootstrap.servers": "a:1"})
LOCAL_FILES = {"type": "sql", "uri": "sqlite:////tmp/c.db", "warehouse": "file:///tmp"}


@pytest.mark.parametrize(
    "properties",
    [
        {**LOCAL_FILES, "s3.secret-access-key": "hunter2"},
        {**LOCAL_FILES, "uri": "postgresql://me:hunter2@db/catalog"},
        {"type": "rest", "uri": "https://catalog.example.com"},
    ],
    ids=["of the storage", "in an address", "issued by a REST catalog"],
)
def test_credentials_of_an_iceberg_table(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks that write data files have them; a broker without credentials does not matter."""
    check_encryption(OPEN, NO_SECRET, sink=IcebergTable("db.t", catalog="c", properties=properties))
    assert "credentials of the table's connection 'c' travel in clear" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_table_on_local_files_has_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """There is no warning."""
    check_encryption(OPEN, NO_SECRET, sink=IcebergTable("db.t", catalog="c", properties=LOCAL_FILES))
    assert not caplog.records


class Session:
    """A session with these settings, and no Spark."""

    def __init__(self, **conf: str) -> None:
        settings = {name.replace("__", "."): value for name, value in conf.items()}
        self.conf = SimpleNamespace(get=settings.get)


def test_the_session_says_what_is_encrypted_whoever_set_it() -> None:
    """Settings of spark-defaults.conf or of a server count; only the task knows a server's address."""
    session: Any = Session(
        spark__master="spark://master:7077",
        spark__authenticate="true",
        spark__network__crypto__enabled="true",
    )
    assert way_in_clear(settings_in_force(session, OPEN)) is None
    session = Session(spark__master="spark://inside:7077")
    in_force = settings_in_force(session, {"spark.remote": "sc://localhost"})
    assert way_in_clear(in_force) == "Spark's RPC at spark://inside:7077"


@pytest.mark.parametrize(("encrypted", "status"), [(False, "warn"), (True, "fail")])
def test_the_doctor_says_what_travels_in_clear(encrypted: bool, status: str) -> None:
    """Before a first run; its message has no credential."""
    (check,) = credentials_on_the_way(OPEN, SECRET, encrypted=encrypted)
    assert (check.status, check.name) == (status, "credentials to Spark")
    assert "Spark's RPC at spark://master:7077" in check.found
    assert "spark.network.crypto.enabled" in check.advice
    assert "hunter2" not in str(check.to_dict())
    (safe,) = credentials_on_the_way(LOCAL, SECRET, encrypted=encrypted)
    assert safe.status == "ok"
    nothing_secret = ClientConfig.of({"bootstrap.servers": "a:1"})
    assert credentials_on_the_way(OPEN, nothing_secret, encrypted=encrypted) == []
