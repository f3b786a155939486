from __future__ import annotations

import datetime as dt
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos import exceptions
from airflow_eos.compat import AirflowFailException
from airflow_eos.compat.retry_policy import RetryAction
from airflow_eos.exceptions import (
    AuthorizationFailed,
    CursorMoved,
    EosError,
    IntervalNotReady,
    OutcomeUnknown,
    ProcessFailed,
    RunFailed,
    RunFenced,
)
from airflow_eos.model.ranges import utc_now
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator
from airflow_eos.operators.retriable import Retry, retry_after
from airflow_eos.operators.retry import TransactionRetryPolicy
from tests.unit.airflow.fakes import a_record, make_context

SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The ledger that the policy asks: ``answer`` is a record or an exception, ``specs`` are the requests."""
    state: dict[str, Any] = {"answer": None, "specs": []}
    engine = ModuleType("airflow_eos.engine")

    def find_committed(spec: Any) -> Any:
        state["specs"].append(spec)
        if isinstance(state["answer"], BaseException):
            raise state["answer"]
        return state["answer"]

    engine.find_committed = find_committed  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "airflow_eos.engine", engine)
    return state


@pytest.fixture
def context(dag: DAG) -> Any:
    operator = ReadProcessWriteOperator(
        task_id="copy",
        dag=dag,
        process=lambda df: df,
        topics=["src"],
        sink_topic="out",
        group_id="g",
        retries=9,
    )
    return make_context(operator)


@pytest.mark.parametrize("error", [RunFenced("by epoch 7"), OutcomeUnknown("no coordinator")])
def test_fenced_try_asks_the_authority_then_backs_off(
    ledger: dict[str, Any], context: Any, error: Exception
) -> None:
    """It is not committed (yet): each further try waits twice as long, up to the limit."""
    policy = TransactionRetryPolicy(5 * SECOND, 30 * SECOND)
    decisions = [policy.evaluate(error, number, 9, context) for number in (1, 2, 3, 4, 60)]
    assert {decision.action for decision in decisions} == {RetryAction.RETRY}
    assert [decision.retry_delay for decision in decisions] == [s * SECOND for s in (5, 10, 20, 30, 30)]
    assert [spec.pipeline for spec in ledger["specs"]] == ["pipelines.copy"] * 5


def test_fenced_try_leaves_the_newer_attempt_as_long_as_it_took_itself(
    ledger: dict[str, Any], context: Any
) -> None:
    """Otherwise two Dag runs of a mapped cursor fenced each other until one had no retries left."""
    context["ti"].start_date = utc_now() - 20 * SECOND
    policy = TransactionRetryPolicy(5 * SECOND, 30 * SECOND)
    delays = [policy.evaluate(RunFenced("by epoch 7"), number, 9, context).retry_delay for number in (1, 4)]
    assert delays[0] is not None
    assert 20 * SECOND <= delays[0] < delays[1] == 30 * SECOND
    unanswered = policy.evaluate(OutcomeUnknown("no answer"), 1, 9, context)
    # A table that does not answer is not caused by another attempt.
    assert (unanswered.retry_delay, unanswered.reason) == (5 * SECOND, "OutcomeUnknown: a retry asks again")


def test_fenced_try_whose_work_is_committed_retries_at_once(ledger: dict[str, Any], context: Any) -> None:
    """The retry succeeds from the record: there is nothing to wait for."""
    ledger["answer"] = a_record()
    decision = TransactionRetryPolicy().evaluate(RunFenced("by epoch 7"), 3, 9, context)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, dt.timedelta(0))
    assert "committed" in (decision.reason or "")


def test_authority_that_cannot_be_asked_does_not_stop_the_retry(ledger: dict[str, Any], context: Any) -> None:
    """A broker is down when the policy asks: it backs off, as if nothing were known."""
    ledger["answer"] = OSError("no route")
    decision = TransactionRetryPolicy().evaluate(RunFenced("by epoch 7"), 1, 9, context)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, 5 * SECOND)
    assert TransactionRetryPolicy().evaluate(RunFenced("x"), 1, 9).action is RetryAction.RETRY


@pytest.mark.parametrize("error", [AuthorizationFailed("no WRITE"), CursorMoved("to 7")])
def test_authorisation_and_plan_errors_fail_without_retry(context: Any, error: Exception) -> None:
    """A retry would have the same result."""
    assert TransactionRetryPolicy().evaluate(error, 1, 9, context).action is RetryAction.FAIL


def test_author_may_refuse_a_retry(context: Any) -> None:
    """AirflowFailException raised inside process keeps its meaning."""
    error = ProcessFailed("process raised")
    error.__cause__ = AirflowFailException("poisoned input")
    assert TransactionRetryPolicy().evaluate(error, 1, 9, context).action is RetryAction.FAIL


def test_the_last_retry_waits_as_long_as_an_idle_partition_is_waited_for(context: Any) -> None:
    """Before, it would meet the same error; earlier retries use the task's delay, as a record may arrive."""
    error, policy, hour = IntervalNotReady("idle"), TransactionRetryPolicy(), dt.timedelta(hours=1)
    assert policy.evaluate(error, 9, 9, context).action is RetryAction.DEFAULT  # the time is unknown
    error.until = utc_now() + hour
    assert policy.evaluate(error, 8, 9, context).action is RetryAction.DEFAULT
    delay = policy.evaluate(error, 9, 9, context).retry_delay
    assert delay is not None
    assert hour - 60 * SECOND < delay <= hour
    context["task"].retry_delay = hour
    assert policy.evaluate(error, 9, 9, context).action is RetryAction.DEFAULT


@pytest.mark.parametrize("error", [RunFailed("aborted"), ProcessFailed("boom"), ValueError("x")])
def test_everything_else_follows_the_task(context: Any, error: Exception) -> None:
    """The task's own retries and delay decide."""
    assert TransactionRetryPolicy().evaluate(error, 1, 9, context).action is RetryAction.DEFAULT


def test_policy_survives_its_json_form() -> None:
    """Airflow may serialise a policy."""
    policy = TransactionRetryPolicy(2 * SECOND, 9 * SECOND)
    again = TransactionRetryPolicy.deserialize(policy.serialize())
    assert (again.base_delay, again.max_delay) == (2 * SECOND, 9 * SECOND)


ACTIONS = {
    Retry.NEVER: RetryAction.FAIL,
    Retry.BACK_OFF: RetryAction.RETRY,
    Retry.AFTER_DELAY: RetryAction.DEFAULT,
}


@pytest.mark.parametrize("kind", [kind for kind in vars(exceptions).values() if isinstance(kind, type)])
def test_policy_does_what_the_page_of_errors_says(kind: type) -> None:
    """Page and policy use the same table."""
    if issubclass(kind, EosError):
        decision = TransactionRetryPolicy().evaluate(kind("the reason"), 1, 9)
        assert decision.action is ACTIONS[retry_after(kind)]
