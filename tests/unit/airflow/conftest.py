from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

import tests.support.airflow_home  # noqa: F401 - first of all

from airflow.sdk import DAG  # isort: skip
from airflow.sdk.bases.operator import ExecutorSafeguard  # isort: skip

from tests.unit.airflow.fakes import START, FakeRun, FakeSession, a_record  # isort: skip


@pytest.fixture(autouse=True)
def airflow_as_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections come from the environment, and operators may be executed directly."""
    extra = {"bootstrap.servers": "broker:9092", "sasl.username": "eos", "sasl.password": "hunter2-secret"}
    document = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", document)
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """Every run that an operator makes, in a fake engine; set ``FakeRun.outcome`` to control it."""
    attempts: list[FakeRun] = []
    engine = ModuleType("airflow_eos.engine")
    monkeypatch.setattr(FakeRun, "outcome", a_record(), raising=False)
    monkeypatch.setattr(FakeRun, "ledger", [None], raising=False)
    monkeypatch.setattr(FakeRun, "asks_for_spark", False, raising=False)

    def run(*args: Any, **kwargs: Any) -> FakeRun:
        attempts.append(FakeRun(*args, **kwargs))
        return attempts[-1]

    def answer(spec: Any, *, wait: bool) -> Any:
        assert wait, "a record whose transaction is being ended must be waited for"
        reply = FakeRun.ledger.pop(0) if len(FakeRun.ledger) > 1 else FakeRun.ledger[0]
        if isinstance(reply, BaseException):
            raise reply
        return reply

    engine.RunAttempt = run  # type: ignore[attr-defined]
    engine.answer = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow_eos.engine", engine)
    return attempts


@pytest.fixture
def spark_starts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Settings of every Spark session that would be started; none is."""
    from airflow_eos.operators.spark_session import TaskSession

    started: list[dict[str, str]] = []

    def start(self: TaskSession, _offsets: int, *, rows: bool = True) -> Any:
        started.append(self._settings)
        return FakeSession()

    monkeypatch.setattr(TaskSession, "start", start)
    return started


@pytest.fixture
def dag() -> DAG:
    return DAG("pipelines", schedule=None, start_date=START)
