from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from airflow.sdk.log import redact
from airflow.secrets import BaseSecretsBackend

from airflow_eos.compat import AirflowNotFoundException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.hooks import kafka_eos
from airflow_eos.hooks.kafka_eos import KafkaEosHook


def connection(monkeypatch: pytest.MonkeyPatch, *listed: Any, **extra: Any) -> KafkaEosHook:
    document = json.dumps({"conn_type": "kafka", "extra": listed or extra})
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", document)
    return KafkaEosHook("cluster")


def token(_config: str) -> tuple[str, float]:
    return "token", 0.0


def test_configuration_is_the_connections_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting of the connection reaches the client."""
    extra = {"bootstrap.servers": "a:1,b:2", "security.protocol": "SASL_SSL", "sasl.username": "me"}
    assert connection(monkeypatch, **extra).get_config() == extra


def test_allowed_callback_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback named in the connection works as with the Kafka provider: from the allow-list only."""
    name = f"{__name__}.token"
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", name)
    config = connection(monkeypatch, **{"bootstrap.servers": "a:1", "oauth_cb": name}).get_config()
    assert config["oauth_cb"]("") == ("token", 0.0)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, "the extra of Kafka connection .*bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "oauth_cb": "os.system"}, "allowlist"),
        ({"bootstrap.servers": ["a:1", "b:2"]}, "must be text"),
    ],
)
def test_unusable_connection_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], says: str
) -> None:
    """The error names the connection and the problem."""
    hook = connection(monkeypatch, **extra)
    with pytest.raises(ConfigurationError, match=says) as error:
        hook.get_config()
    assert "'cluster'" in str(error.value)


class Away(BaseSecretsBackend):
    """A secrets backend whose store does not answer."""

    requested: ClassVar[list[str]] = []

    def get_connection(self, conn_id: str) -> None:
        self.requested.append(conn_id)
        raise ConnectionRefusedError(conn_id)


def test_missing_connection_may_be_there_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow also calls a connection undefined if a secrets backend failed, and logs nothing."""
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", f"{__name__}.{Away.__name__}")
    with pytest.raises(AirflowNotFoundException, match=r"'absent'\. If .* a secrets backend did not answer"):
        KafkaEosHook("absent").get_config()
    assert Away.requested == ["absent"]


def test_an_extra_that_is_a_list_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry could not parse it either."""
    with pytest.raises(ConfigurationError, match="'cluster': its extra must be a JSON object"):
        connection(monkeypatch, {"bootstrap.servers": "a:1"}).get_config()


def test_secrets_are_masked_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's masker gets passwords, keys and OAuth secrets, but not user names and servers."""
    masked: list[str] = []
    monkeypatch.setattr(kafka_eos, "mask_secret", masked.append)
    extra = {
        "bootstrap.servers": "a:1",
        "sasl.username": "me",
        "sasl.password": "p1",
        "ssl.key.password": "p2",
        "ssl.key.pem": "p3",
        "ssl.keystore.password": "p4",
        "sasl.oauthbearer.client.secret": "p5",
        "sasl.oauthbearer.config": "p6",
    }
    connection(monkeypatch, **extra).get_config()
    assert sorted(masked) == ["p1", "p2", "p3", "p4", "p5", "p6"]


def test_a_password_that_is_a_number_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients accept one."""
    connection(monkeypatch, **{"bootstrap.servers": "a:1", "sasl.password": 93847561}).get_config()
    assert "93847561" not in str(redact("the password is 93847561"))


def test_a_callback_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{__name__}.no_such"
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", name)
    with pytest.raises(ConfigurationError, match=r"'cluster' cannot be used.*no_such"):
        connection(monkeypatch, **{"bootstrap.servers": "a:1", "oauth_cb": name}).get_config()
