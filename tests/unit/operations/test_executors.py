"""The doctor's look at Spark: what it shows of an address, however that was typed."""

from __future__ import annotations

import pytest

from airflow_eos.operations.executors import check_executors
from airflow_eos.spark.address import shown_address, without_parameters
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
    """Host and port stay; a message that quotes the address, or a parameter alone, keeps its words."""
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
    # PySpark sets it for good: no classic session could start in this process, or below it.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
    (check,) = check_executors(address, KAFKA, encrypted=False)
    assert check.status == "fail"
    assert check.found.startswith("no session: ")
    assert "S3CRET" not in repr(check)
