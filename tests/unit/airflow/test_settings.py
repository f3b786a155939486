"""Settings that are computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos import settings
from airflow_eos.compat import AirflowConfigException
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operators.retriable import is_final
from airflow_eos.triggers.run_committed import RunCommittedTrigger


@pytest.mark.parametrize(
    ("base_url", "origin"),
    [
        ("", ""),
        ("http://localhost:8080", ""),
        ("http://127.0.0.1:8080", ""),
        ("http://0.0.0.0:8080/", ""),
        ("http://[::1]:8080", ""),
        ("http://team.localhost", ""),
        ("no address", ""),
        ("http://host:port", ""),
        ("https://Airflow.example.com", "airflow.example.com"),
        ("https://airflow.example.com:8443/team-a/", "airflow.example.com:8443/team-a"),
        ("http://airflow.example.com", "airflow.example.com"),
        ("https://ada:hunter2@airflow.example.com/?token=hunter2", "airflow.example.com"),
        ("http://10.0.0.7:8080", "10.0.0.7:8080"),
    ],
)
def test_origin_is_the_address_people_know(
    base_url: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name per deployment, none if every machine has it, and never a secret."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert settings.origin() == origin


def test_origin_that_was_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow deployment that moved keeps its name."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://new.example.com")
    monkeypatch.setenv("AIRFLOW__EOS__ORIGIN", " old.example.com ")
    assert settings.origin() == "old.example.com"


SECRET = "a-secret-of-length"


def test_the_ledger_key_comes_from_a_command_as_airflows_own_secrets_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option that is marked as sensitive, so that ``airflow config list`` hides it."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY_CMD", f"echo {SECRET}")
    assert settings.default_ledger().key == SECRET


def test_a_ledger_key_that_no_secrets_backend_returns_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise any record would count, and a new ledger would be unsigned; a retry may get the key."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY_SECRET", "eos/key")
    with pytest.raises(AirflowConfigException, match="no secrets backend returns 'eos/key'") as error:
        settings.default_ledger()
    assert not is_final(error.value)


def test_the_ledger_key_is_masked_and_given_to_every_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several keys is masked; a Dag's own settings get the key, unless they have one."""
    masked: list[str] = []
    monkeypatch.setattr(settings, "mask_secret", masked.append)
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY", f"{SECRET} {SECRET}-before")
    given = LedgerSettings(topic="theirs", partitions=3)
    assert settings.with_key(given) == replace(given, key=f"{SECRET} {SECRET}-before")
    assert settings.ledger_to_ask("theirs").key == f"{SECRET} {SECRET}-before"
    assert set(masked) == {f"{SECRET} {SECRET}-before", SECRET, f"{SECRET}-before"}
    assert settings.with_key(replace(given, key="their-own-secret-key")).key == "their-own-secret-key"


def test_a_key_that_is_too_short_is_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before any request, and not shown."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY", "hunter2")
    with pytest.raises(ConfigurationError, match="fewer than 16") as refused:
        settings.default_ledger()
    assert "hunter2" not in str(refused.value)


def test_the_ledger_key_is_in_no_serialised_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers have the ledger's topic; the triggerer reads the key from its own configuration."""
    monkeypatch.setenv("AIRFLOW__EOS__LEDGER_KEY", SECRET)
    ledgers: list[LedgerSettings] = []

    def find(deployment: Deployment, **_: object) -> None:
        ledgers.append(deployment.ledger)

    monkeypatch.setattr("airflow_eos.engine.committed.find_committed_by_key", find)
    trigger = RunCommittedTrigger(pipeline="p", run_key="k", ledger_topic="theirs", prefix="x")
    assert SECRET not in repr(trigger.serialize())
    assert trigger.ask({}) is None
    assert ledgers == [LedgerSettings(topic="theirs", create=False, key=SECRET)]


def test_a_topic_of_the_brokers_is_not_a_ledger() -> None:
    with pytest.raises(ConfigurationError, match="'__consumer_offsets' is written by brokers only"):
        LedgerSettings(topic="__consumer_offsets")
