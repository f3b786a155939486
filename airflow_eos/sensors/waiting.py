"""Base of all sensors: a condition, polled by the task itself or by the triggerer."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_eos import exceptions
from airflow_eos.compat import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralTimeout,
    conf,
)
from airflow_eos.exceptions import CredentialsRefused, EosError
from airflow_eos.model.ranges import utc_now
from airflow_eos.operators.literals import CheckedParameters, check_literals, check_rendered, templates_of
from airflow_eos.operators.retriable import is_final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow.sdk import Context

    from airflow_eos.triggers.condition import ConditionTrigger


class WaitingSensor(CheckedParameters, BaseSensorOperator):
    """Wait for a condition; return its result for XCom.

    A deferrable sensor pokes once, then frees its worker slot, and the triggerer polls; any other one pokes,
    or is rescheduled (``mode``). Unreachable brokers are polled again until the sensor's ``timeout``. Errors
    that would persist (a wrong setting, a missing permission) fail the task at once.
    If deferred, ``exponential_backoff`` has no effect, and ``silent_fail`` covers only the first poke: an
    error in the triggerer fails the try. ``soft_fail`` and ``never_fail`` mean the same in both.

    :param kafka_config_id: connection of type ``kafka``. (templated)
    :param deferrable: default ``[operators] default_deferrable``.
    """

    template_fields: Sequence[str] = ("kafka_config_id",)
    ui_color = "#e6f1f2"
    _had_connection = False

    def __init__(
        self,
        *,
        kafka_config_id: str = "kafka_default",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self.kafka_config_id = kafka_config_id
        given = {**vars(self), "deferrable": deferrable, **kwargs}
        self._templates = templates_of(type(self), given)
        check_literals(type(self), given)  # before the Dag knows the task
        super().__init__(**kwargs)
        if self.has_dag():
            check_literals(type(self), {**given, "dag": self.dag, "task_id": self.task_id}, with_dag=True)
        self.deferrable = (
            bool(conf.getboolean("operators", "default_deferrable", fallback=False))
            if deferrable is None
            else deferrable
        )

    def make_trigger(self, context: Context) -> ConditionTrigger:
        """Return the condition, for this Dag run; raises ConfigurationError, which fails the task."""
        raise NotImplementedError

    def poke(self, context: Context) -> PokeReturnValue:
        """Evaluate the condition once.

        :raises AirflowFailException: another poke cannot help.
        :raises AirflowNotFoundException: Airflow does not know the connection.
        :raises EosError: the condition cannot be evaluated; the task retries.
        """
        try:
            check_rendered(self, self._templates)
            answer = self.make_trigger(context).poll()
            self._had_connection = True
        except (AirflowNotFoundException, CredentialsRefused) as error:
            # Airflow also raises AirflowNotFoundException while its API server does not answer. A sensor is
            # rescheduled, to another process, only after a poll that was answered.
            if not (self._had_connection or context.get("task_reschedule_count")):
                _raise(error)
            self.log.warning("Asking again, because this connection has worked before: %s", error)
            answer = None
        except EosError as error:
            _raise(error)
        return PokeReturnValue(is_done=answer is not None, xcom_value=answer)

    def execute(self, context: Context) -> Any:
        """Return the condition's result, or defer until it holds."""
        if not self.deferrable:
            return super().execute(context)
        poke = self._first_poke(context)
        if poke is not None and poke.is_done:
            return poke.xcom_value
        return self.defer(
            trigger=self.make_trigger(context),
            method_name="execute_complete",
            timeout=dt.timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the trigger's result.

        :raises AirflowFailException: another poll cannot help.
        :raises EosError: the condition cannot be evaluated; the task retries, also with ``soft_fail``.
        """
        if "answer" in event:
            return event["answer"]
        error = getattr(exceptions, event["error"], EosError)(event["message"])
        return _raise(error)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the triggerer has answered, or failed, with the rules of a sensor that pokes.

        Airflow's own ``resume_execution`` skips a task with ``soft_fail`` after every error.
        """
        with self._skipping():
            try:
                return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
            except TaskDeferralTimeout as error:
                raise AirflowSensorTimeout(
                    f"{error}: the condition did not hold within timeout ({self.timeout:.0f} s), or no "
                    "triggerer asked; the log of its trigger tells"
                ) from error

    def waiting_since(self, context: Context) -> dt.datetime:
        """Return when this try began to wait; a rescheduled one began earlier than its process."""
        instance = context["ti"]
        first = instance.get_first_reschedule_date(context) if self.reschedule else None
        return first or instance.start_date or utc_now()

    def _first_poke(self, context: Context) -> PokeReturnValue | None:
        """Poke before deferring, with the rules of ``soft_fail``, ``never_fail`` and ``silent_fail``."""
        with self._skipping():
            try:
                return self.poke(context)
            except AirflowFailException:
                raise
            except Exception:
                if self.never_fail or not self.silent_fail:
                    raise
                self.log.exception("Asking failed; it is asked again")
                return None

    @contextlib.contextmanager
    def _skipping(self) -> Iterator[None]:
        """Apply ``soft_fail`` and ``never_fail`` to exceptions of the block, as a sensor that pokes does."""
        try:
            yield
        except (AirflowFailException, AirflowSensorTimeout) as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        except AirflowSkipException:
            raise
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise


def _raise(error: Exception) -> NoReturn:
    if is_final(error):
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
    raise error
