"""Settings that are worked out."""

from __future__ import annotations

import pytest

from airflow_eos import settings


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
    """One name for each deployment, none where every machine has it, and never a secret."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert settings.origin() == origin


def test_origin_that_was_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow that moved keeps its name."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://new.example.com")
    monkeypatch.setenv("AIRFLOW__EOS__ORIGIN", " old.example.com ")
    assert settings.origin() == "old.example.com"
