"""``@task.kafka_eos``: the decorated function is the run's ``process``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.process_function import with_arguments
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import Context

    from airflow_eos.operators.process_function import Process

_RUN = "run"


class _KafkaEosDecoratedOperator(DecoratedOperator, ReadProcessWriteOperator):
    """The operator behind ``@task.kafka_eos``; every parameter is the operator's."""

    template_fields: Sequence[str] = ReadProcessWriteOperator.template_fields
    custom_operator_name = "@task.kafka_eos"
    op_kwargs: Mapping[str, Any]

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        stand_in = _without_frame(python_callable)
        super().__init__(
            python_callable=stand_in,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"process": python_callable, "op_args": op_args, "op_kwargs": op_kwargs},
            **kwargs,
        )
        self.python_callable = stand_in

    def prepared_process(self, context: Context) -> Process:
        """Return the decorated function with the arguments of the task's call, and those of the context.

        :raises ConfigurationError: the Dag run has no value for a context variable the function needs.
        """
        bound = self._arguments(context)
        if "source_partition" in bound:
            # Expanded over partitions: the argument chooses the partition, and the function sees it.
            self.source_partition = bound["source_partition"]
        return with_arguments(super().prepared_process(context), bound)

    def _arguments(self, context: Context) -> dict[str, Any]:
        signature = inspect.signature(self.python_callable)
        given = signature.bind_partial(*self.op_args, **self.op_kwargs).arguments
        # As in every decorated task: Airflow asks for no argument that is named like a context variable.
        known: Mapping[str, Any] = {**context}
        values = {name: known[name] for name in signature.parameters if name in known and name not in given}
        try:
            return dict(signature.bind(*self.op_args, **self.op_kwargs, **values).arguments)
        except TypeError as error:
            raise ConfigurationError(
                f"{self.python_callable.__name__} takes {signature}: {error}. Where it names a context "
                "variable, this Dag run has none; give the parameter the default None"
            ) from error


def _without_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in that takes what the author passes when the task is called: all but df and run.

    :raises ConfigurationError: the function has no parameter for the DataFrame.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ConfigurationError(
            "@task.kafka_eos needs a function of a DataFrame, f(df, ...) or f(df, run, ...); "
            f"{function.__name__} takes {inspect.signature(function)}"
        )

    @functools.wraps(function)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    rest = [one for one in parameters[1:] if one.name != _RUN]
    stand_in.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
    return stand_in


def kafka_eos_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Wrap a function from DataFrame to DataFrame into a task that commits exactly once.

    Takes every parameter of :class:`~airflow_eos.operators.read_process_write.ReadProcessWriteOperator`
    except ``process``::

        @task.kafka_eos(topics=["orders"], sink_topic="large-orders", group_id="large", retries=2)
        def large(df, run, threshold=1000):
            return df.where(...).select("key", "value")

        large(threshold=5000)

    ``df`` and, where there is one, ``run`` come from the run; all other parameters from the call, or from
    Airflow's context if they are named like a variable of it (``ds``, ``params``). What Spark ships to its
    executors, by a user defined function or an ``@arrow_process``, must be a plain value there, not ``ti``.
    Where Airflow does not know the provider, ``from airflow_eos.decorators.kafka_eos import kafka_eos_task``
    does the same. A function with a parameter ``source_partition`` may be expanded over the partitions.

    :param python_callable: the function.
    :param multiple_outputs: as in every task decorator.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_KafkaEosDecoratedOperator,
        **kwargs,
    )
