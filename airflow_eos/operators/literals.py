"""Checks an author's parameters when the Dag is parsed, and rendered templates before Spark starts.

The rules are in :mod:`airflow_eos.operators.parameter_table`. Templates, results of other tasks and mapped
arguments are not known at parse; the task checks them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

from typing_extensions import Self

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.operators.parameter_table import TABLE, Row
from airflow_eos.operators.rendered import is_literal

DAG = "dag"
"""Placeholder in a row for the task's Dag, which is known only after the task's parameters."""
_EMPTY_IS_THE_DEFAULT = ("pipeline", "prefix", "ledger_topic", "run_key")
_NONE_NAMES_ANOTHER_RUN = (*_EMPTY_IS_THE_DEFAULT, "source_partition")
_NAMES = (
    *("group_id", "pipeline", "prefix", "topics", "sink_topic", "dead_letter_topic", "kafka_config_id"),
    *("run_id", "run_key", "ledger_topic"),
)
_NONE = re.compile(r"(?<![A-Za-z0-9])None(?![A-Za-z0-9])")


class CheckedParameters:
    """A mixin before an Airflow class: the table checks the names and literals of its parameters."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse a misspelt parameter, for which Airflow would report another one as missing."""
        check_spelling(cls, given)
        return super().__new__(cls)

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """Return an operator to be mapped, after a check of the literals that are already known."""
        check_spelling(cls, given)
        check_literals(cls, given, whole=False)
        return super().partial(**given)  # type: ignore[misc]


def check_literals(
    cls: type, given: Mapping[str, Any], *, whole: bool = True, with_dag: bool = False
) -> None:
    """Check the parameters that are known when the Dag is parsed.

    :param given: values by the names of parameters.
    :param whole: whether these are all parameters, so that missing ones have no value.
    :param with_dag: apply the rows about the task's Dag, and no others.
    :raises ConfigurationError: a literal is refused; Airflow shows it as an import error of the Dag.
    """
    templated = getattr(cls, "template_fields", ())
    later = {name for name, value in given.items() if name in templated and not is_literal(value)}
    _apply(cls, {name: value for name, value in given.items() if name not in later}, later, whole, with_dag)


def check_rendered(task: Any, templates: Mapping[str, Any]) -> None:
    """Check all parameters once templates are rendered, before any request or start.

    :param templates: the author's values of the parameters that :func:`templates_of` returned.
    :raises ConfigurationError: a value is refused; an empty one is named with its template.
    """
    values = vars(task)
    for name, template in templates.items():
        value = values.get(name)
        stripped = value.strip() if isinstance(value, str) else value
        is_empty = stripped == "" and name not in _EMPTY_IS_THE_DEFAULT
        # From a native template, or from a task that was skipped or returned nothing.
        is_none = stripped == "None" or (value is None and name in _NONE_NAMES_ANOTHER_RUN)
        if is_empty or is_none:
            raise ConfigurationError(
                f"{name} is empty: its template {_shown(template)} rendered to {value!r}; give its "
                "variables a value"
            )
        if name not in _NAMES:
            continue
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str) and _is_unnamed(name, text, str(template)):
                raise ConfigurationError(
                    f"{name} {text!r} is not a name: its template {_shown(template)} rendered a variable "
                    "that is None, or white space at an end; give its variables a value. A name that is "
                    "like this must be in the Dag file, not in a variable"
                )
    _apply(type(task), values, (), whole=True, with_dag=False)


def templates_of(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the templated values, which are only known in the task."""
    fields = getattr(cls, "template_fields", ())
    return {name: given[name] for name in fields if name in given and not is_literal(given[name])}


def check_spelling(cls: type, given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an unknown parameter whose name is similar to a known one."""
    if not _is_ours(inspect.getattr_static(cls, "__init__")):
        return  # the author's own class, which may accept more than its signature says
    all_names, own = _parameters(cls)
    for name in given:
        hint = "" if name in all_names or name.startswith("_") else did_you_mean(name, own)
        if hint:
            raise ConfigurationError(f"{cls.__name__.lstrip('_')} has no parameter {name!r}{hint}")


def _apply(cls: type, values: Mapping[str, Any], later: Any, whole: bool, with_dag: bool) -> None:
    for row in TABLE:
        if (
            row.parameters[0] not in values
            or (DAG in row.parameters) is not with_dag
            or not row.concerns(cls)
        ):
            continue
        if any(name in later or (not whole and name not in values) for name in row.parameters):
            continue
        _check(cls, row, [values.get(name) for name in row.parameters])


def _check(cls: type, row: Row, values: list[Any]) -> None:
    if not is_literal(values[0]) and hasattr(values[0], "resolve"):
        raise ConfigurationError(
            f"{row.parameters[0]} is not a templated field of {cls.__name__.lstrip('_')}: it must be known "
            "when the Dag is parsed, and cannot be the result of another task"
        )
    try:
        row.check(*values)
    except (TypeError, ValueError, OverflowError) as error:  # of a range or an interval that cannot be
        raise ConfigurationError(str(error)) from error


def _is_unnamed(parameter: str, text: str, template: str) -> bool:
    """Return whether a name was rendered from a variable without a value, or ends in white space.

    It would be another name: of a group that reads everything again, or of a pipeline without commits.
    """
    if parameter != "topics" and text != text.strip():  # the text of a list may begin or end with any
        return True
    return _NONE.search(text) is not None and "None" not in template


def _shown(template: Any) -> str:
    return repr(template) if isinstance(template, str | list | tuple) else str(template)


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("airflow_eos.")


@functools.cache
def _parameters(cls: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all parameters of a class and its bases, and those of this package."""
    all_names: set[str] = set()
    own: set[str] = set()
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None or base is object:
            continue
        names = set(inspect.signature(init).parameters)
        all_names |= names
        if _is_ours(init):
            own |= names - {"self", "kwargs"}
    return frozenset(all_names), frozenset(own)
