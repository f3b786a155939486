"""``@task.kafka_eos``: the decorated function is the run's ``process``."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.operators.literals import check_literals, check_spelling
from airflow_eos.operators.read_process_write import ReadProcessWriteOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import Context

_RUN = "run"
_PARTITION = "source_partition"
_MAPPABLE = (_PARTITION, "pipeline", "group_id", "topics", "sink_topic")
"""Parameters of a run that a call may set for each task instance."""
_AUTHORS = "__airflow_eos_authors__"


class _KafkaEosDecoratedOperator(DecoratedOperator, ReadProcessWriteOperator):
    """The operator behind ``@task.kafka_eos``, with the parameters of ReadProcessWriteOperator."""

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
        process = getattr(python_callable, _AUTHORS, python_callable)
        stand_in = _without_frame(process)
        own, chosen = _divided(stand_in, op_args or (), op_kwargs or {})
        super().__init__(
            python_callable=stand_in,
            op_args=op_args,
            op_kwargs=own,
            kwargs_to_upstream={"process": process, "op_args": op_args, "op_kwargs": own},
            **{**kwargs, **chosen},
        )
        self.python_callable = stand_in
        # The partition is an argument of both the function and the run.
        self.function_arguments = frozenset(_MAPPABLE).intersection(own).difference({_PARTITION})

    def process_arguments(self, context: Context) -> Mapping[str, Any]:
        """Return the arguments of the task's call, and those of the context.

        :raises ConfigurationError: the Dag run has no value for a context variable the function needs.
        """
        signature = inspect.signature(self.python_callable)
        given = signature.bind_partial(*self.op_args, **self.op_kwargs).arguments
        # As in every decorated task, a parameter named like a context variable needs no argument.
        available: Mapping[str, Any] = {**context}
        values = {
            name: available[name] for name in signature.parameters if name in available and name not in given
        }
        try:
            return dict(signature.bind(*self.op_args, **self.op_kwargs, **values).arguments)
        except TypeError as error:
            raise ConfigurationError(
                f"{self.python_callable.__name__} takes {signature}: {error}. Where it names a context "
                "variable, this Dag run has none; give the parameter the default None"
            ) from error


def _divided(
    function: Callable[..., Any], op_args: Sequence[Any], op_kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the function, and the parameters of the run that the call sets.

    If the function has a parameter ``source_partition``, the argument is for both.
    """
    signature = inspect.signature(function)
    names = signature.parameters
    chosen = {name: op_kwargs[name] for name in _MAPPABLE if name in op_kwargs and name not in names}
    own = {name: value for name, value in op_kwargs.items() if name not in chosen}
    with contextlib.suppress(TypeError):  # Airflow itself refuses arguments that the function does not take
        partition = signature.bind_partial(*op_args, **own).arguments.get(_PARTITION)
        if partition is not None:
            chosen[_PARTITION] = partition
    return own, chosen


def _with_run_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the run's mappable parameters in its signature.

    Airflow maps a decorated task only over parameters of its function.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function  # takes any argument
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in _MAPPABLE
        if name not in signature.parameters
    ]
    mappable = _called_as(function, signature.replace(parameters=[*parameters, *added]))
    setattr(mappable, _AUTHORS, function)
    return mappable


def _without_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that takes the arguments of the task's call: all parameters but df and run."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ConfigurationError(
            "@task.kafka_eos needs a function of a DataFrame, f(df, ...) or f(df, run, ...); "
            f"{function.__name__} takes {inspect.signature(function)}"
        )
    rest = [parameter for parameter in parameters[1:] if parameter.name != _RUN]
    return _called_as(function, inspect.Signature(rest))


def _called_as(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return a function that calls this one and has another signature."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


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
    does the same.

    A task may be mapped over ``source_partition``, whether or not the function has such a parameter, and over
    the other parameters of a run that tell instances apart (``pipeline``, ``group_id``, ``topics``,
    ``sink_topic``)::

        large.partial(threshold=5000).expand(source_partition=[0, 1, 2])

    :param python_callable: the function.
    :param multiple_outputs: as in every task decorator.
    """
    check_spelling(_KafkaEosDecoratedOperator, kwargs)
    check_literals(_KafkaEosDecoratedOperator, kwargs, whole=False)
    if python_callable is None:
        with_arguments = functools.partial(kafka_eos_task, multiple_outputs=multiple_outputs, **kwargs)
        return cast("TaskDecorator", with_arguments)
    return task_decorator_factory(
        python_callable=_with_run_parameters(python_callable),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_KafkaEosDecoratedOperator,
        **kwargs,
    )
