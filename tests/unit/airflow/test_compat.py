"""Older versions of Airflow: which are refused, and what replaces features that they lack."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos import TransactionRetryPolicy, compat
from airflow_eos.compat import AirflowFailException, AirflowSkipException, retry_policy
from airflow_eos.exceptions import (
    BrokersUnavailable,
    ConfigurationError,
    GroupOwned,
    ProcessFailed,
    RunFenced,
)

# -- versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.11.2", "3.0.0", "3.0.6", "3.0.6rc1"])
def test_an_airflow_before_3_1_is_refused_with_the_reason(version: str) -> None:
    with pytest.raises(ImportError, match=f"needs Airflow 3.1 or later.* {version}.*cleared while it ran"):
        compat.supported_version(version)


@pytest.mark.parametrize(
    ("version", "release"), [("3.1.0", (3, 1)), ("3.1.8", (3, 1)), ("3.4.0b2", (3, 4)), ("3.10.1", (3, 10))]
)
def test_later_ones_are_not(version: str, release: tuple[int, int]) -> None:
    assert compat.supported_version(version) == release


# -- retry policies, in versions of Airflow that do not know them -----------------------------------------


class Operator:
    """Raises the given error, like an operator in a version without retry policies."""

    def __init__(self, error: BaseException, policy: Any = None) -> None:
        self.error = error
        self.retry_policy = policy
        self.log = SimpleNamespace(error=lambda *_: None)

    def execute(self, context: Any) -> None:
        raise self.error


def execute(operator: Operator) -> None:
    """Execute as decorated before Airflow 3.3, whatever this version is."""
    context = {"ti": SimpleNamespace(try_number=1, max_tries=2)}
    retry_policy._asking(type(operator).execute)(operator, context)


@pytest.mark.parametrize("error", [GroupOwned("g is another's"), ConfigurationError("wrong")])
def test_a_final_error_is_also_one_that_airflow_does_not_retry(error: Exception) -> None:
    """Its class, name, text and page stay: callbacks and the page see the error that the run raised."""
    error.__cause__ = cause = OSError("why")
    with pytest.raises(type(error)) as caught:
        execute(Operator(error, TransactionRetryPolicy()))
    assert isinstance(caught.value, AirflowFailException)
    assert type(caught.value).__name__ == type(error).__name__
    assert (str(caught.value), caught.value.documentation) == (str(error), error.documentation)
    assert caught.value.__cause__ is cause


def test_attributes_of_the_error_stay() -> None:
    failed = ProcessFailed("process raised", raised=("builtins.ValueError",))
    error = compat.also(failed, AirflowFailException)
    assert isinstance(error, ProcessFailed)
    assert error.raised == ("builtins.ValueError",)


@pytest.mark.parametrize("error", [RunFenced("newer"), BrokersUnavailable("down"), ValueError("x")])
def test_any_other_error_is_raised_as_it_is_and_retried(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        execute(Operator(error, TransactionRetryPolicy()))
    assert caught.value is error


def test_without_a_policy_the_task_retries() -> None:
    with pytest.raises(GroupOwned) as caught:
        execute(Operator(GroupOwned("g")))
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize("signal", [AirflowSkipException("skip"), AirflowFailException("fail")])
def test_what_a_task_asks_of_airflow_is_no_business_of_the_policy(signal: Exception) -> None:
    policy = SimpleNamespace(evaluate=lambda *_: pytest.fail("the policy was asked"))
    with pytest.raises(type(signal)) as caught:
        execute(Operator(signal, policy))
    assert caught.value is signal


# -- what an older Airflow does not pass to a task --------------------------------------------------------


def test_a_dag_run_of_an_older_airflow_has_no_partition() -> None:
    assert compat.partition_key(SimpleNamespace()) is None
    assert compat.partition_date(SimpleNamespace(partition_key="2026-11-20")) is None


def test_a_trigger_of_an_older_airflow_has_no_state() -> None:
    assert compat.asset_state_store(SimpleNamespace()) is None


@pytest.mark.parametrize("name", ["interval", "_interval"])
def test_timetables_keep_their_arguments_under_one_of_two_names(name: str) -> None:
    hour = dt.timedelta(hours=1)
    assert compat.timetable_field(SimpleNamespace(**{name: hour}), "interval") == hour
