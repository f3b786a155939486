"""Retry policies: Airflow evaluates them since 3.3; before, an operator evaluates its policy itself."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from airflow_eos.compat import TASK_SIGNALS, AirflowFailException, also

__all__ = ["RetryAction", "RetryDecision", "RetryPolicy", "arguments_of_operator", "asks_retry_policy"]

Method = TypeVar("Method", bound=Callable[..., Any])

try:
    from airflow.sdk import RetryAction, RetryDecision, RetryPolicy

    _AIRFLOW_ASKS = True
except ImportError:  # before 3.3
    from dataclasses import dataclass
    from enum import Enum

    _AIRFLOW_ASKS = False

    class RetryAction(Enum):  # type: ignore[no-redef]
        """What Airflow does after a failed try."""

        RETRY = "retry"
        FAIL = "fail"
        DEFAULT = "default"

    @dataclass(frozen=True)
    class RetryDecision:  # type: ignore[no-redef]
        """The decision of a policy.

        :param retry_delay: kept for the policy's callers: this Airflow waits for the task's ``retry_delay``.
        """

        action: RetryAction = RetryAction.DEFAULT
        retry_delay: dt.timedelta | None = None
        reason: str | None = None

        @classmethod
        def fail(cls, reason: str | None = None) -> RetryDecision:
            """Fail the task without a further try."""
            return cls(RetryAction.FAIL, reason=reason)

        @classmethod
        def retry(cls, delay: dt.timedelta | None = None, reason: str | None = None) -> RetryDecision:
            """Retry, while the task has retries left."""
            return cls(RetryAction.RETRY, delay, reason)

        @classmethod
        def default(cls) -> RetryDecision:
            """Leave the decision to the task's ``retries``."""
            return cls()

    class RetryPolicy:  # type: ignore[no-redef]
        """Base class of retry policies; see Airflow 3.3."""


def arguments_of_operator(operator: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that this Airflow's ``BaseOperator`` accepts; keep the policy as an attribute."""
    if _AIRFLOW_ASKS:
        return arguments
    operator.retry_policy = arguments["retry_policy"]
    return {name: value for name, value in arguments.items() if name != "retry_policy"}


def asks_retry_policy(method: Method) -> Method:
    """Decorate ``execute`` or a similar method: before Airflow 3.3, evaluate the policy on its errors.

    An error that the policy fails also becomes an ``AirflowFailException``, so that Airflow does not retry.
    Any other error is raised unchanged, and Airflow retries after the task's own ``retry_delay``, whatever
    delay the policy returns.
    """
    return method if _AIRFLOW_ASKS else cast("Method", _asking(method))


def _asking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def asking(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, context, *args, **kwargs)
        except TASK_SIGNALS:
            raise
        except Exception as error:
            if self.retry_policy is None:
                raise
            instance = context["ti"]
            decision = self.retry_policy.evaluate(error, instance.try_number, instance.max_tries, context)
            if decision.action is not RetryAction.FAIL:
                raise
            self.log.error("No further try: %s", decision.reason)  # noqa: TRY400 - Airflow logs the error
            raise also(error, AirflowFailException) from error.__cause__

    return asking
