"""The doctor's check of Spark: how it shows an address, however that was typed."""

from __future__ import annotations

import socket

import pytest

from airflow_eos.exceptions import SparkUnavailable
from airflow_eos.operations.executors import check_executors
from airflow_eos.spark.address import shown_address, without_parameters
from airflow_eos.spark.server_wait import wait_for_server
from airflow_eos.wire.client_config import ClientConfig

KAFKA = ClientConfig.of({"bootstrap.servers": "a:1"})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("local[2]", "local[2]"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077"),
        ("k8s://https://h:443", "k8s://https://h:443"),
        ("sc://[::1]:15002/;token=S3CRET", "sc://[::1]:15002/"),
        ("sc://:15002/;token=S3CRET", "sc://:15002/"),
        ("sc://h:1/token=S3CRET", "sc://h:1/"),
        ("sc://h;token=S3CRET", "sc://h"),
        ("sc://h?token=S3CRET", "sc://h"),
        ("sc://S3CRET@h:1", "sc://h:1"),
        ("sc://me:S3CRET@h:1/;use_ssl=true", "sc://h:1/"),
        ("sc:/h/;token=S3CRET", "sc:/"),
        ("h:1/;token=S3CRET\n", "h:1/"),
    ],
)
def test_an_address_is_shown_without_its_token(address: str, shown: str) -> None:
    """Host and port stay; a message that quotes the address, or only a parameter, keeps its text."""
    assert shown_address(address) == shown
    for quoted in (address, address.lower(), "token=S3CRET") if "S3CRET" in address else (address,):
        message = without_parameters(f"the true reason: {quoted} is wrong", address).lower()
        assert "s3cret" not in message
        assert message.startswith("the true reason: ")


@pytest.mark.parametrize(
    "address", ["sc://:15002/;token=S3CRET", "sc://h:1/token=S3CRET", "sc://h:x/;token=S3CRET"]
)
def test_a_mistyped_address_fails_without_its_token(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's error quotes the address."""
    # PySpark sets it for good: no classic session could start in this process, or in its children.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
    monkeypatch.setattr("airflow_eos.operations.executors._PATIENCE", 0.0)
    (check,) = check_executors(address, KAFKA, encrypted=False)
    assert check.status == "fail"
    assert check.found.startswith("no session: ")
    assert "S3CRET" not in repr(check)


def test_a_server_that_is_down_is_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's client would try for ten minutes; 0.0.0.0 reaches this host and is not a loopback address."""
    monkeypatch.setattr("airflow_eos.operations.executors._PATIENCE", 0.1)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"sc://0.0.0.0:{held.getsockname()[1]}"
        (check,) = check_executors(f"{address}/;token=S3CRET", KAFKA, encrypted=False)
    assert check.status == "fail"
    assert check.found.startswith(f"no session: no Spark Connect server at {address.removeprefix('sc://')}")
    assert "check the address" in check.found
    assert "S3CRET" not in repr(check)


def test_behind_a_proxy_spark_connects_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC would connect to the proxy, which may reach a server that this host cannot."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(SparkUnavailable):
            wait_for_server(f"sc://0.0.0.0:{port}", 0.0)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        wait_for_server(f"sc://0.0.0.0:{port}", 0.0)
        with pytest.raises(SparkUnavailable, match="airflow eos spark-server"):
            wait_for_server(f"sc://127.0.0.1:{port}", 0.0)
