"""Refuses mapped tasks whose instances would be one run: a run's name has no map index."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Interval, PartitionInterval
from airflow_eos.operators.rendered import is_literal, parse_topics
from airflow_eos.operators.task_identity import DATA_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk import Context

_OF_INDEX = re.compile(r"\bmap_index\b")


def refuse_same_run(task: Any, context: Context, templates: Mapping[str, Any]) -> bool:
    """Refuse a mapped task of which several instances would be one run: a run's name has no map index.

    The expansion of the task, or of its task group, must give each instance its own pipeline or source
    partition; topics or ranges suffice if it reads intervals of a given pipeline.

    :param task: the operator of this instance.
    :param templates: the author's values that are only known in the task.
    :returns: whether the instances are known to be different runs. An instance cannot know what the others'
        templates render to: then the ledger's record decides, see
        :func:`~airflow_eos.operators.other_task.refuse_other_task`.
    :raises ConfigurationError: names the alternatives.
    """
    index = context["ti"].map_index
    if index is None or index < 0:
        return True
    for name in ("pipeline", "group_id"):
        if isinstance(template := templates.get(name), str) and _OF_INDEX.search(template):
            raise ConfigurationError(
                f"{name} {template!r} follows the map index, which is another element's once the list has "
                "changed. Name it by the element, as {{ task.op_kwargs.region }}"
            )
    names = ["pipeline", "source_partition"]
    if task.pipeline and (
        task.ranges == DATA_INTERVAL or isinstance(task.ranges, Interval | PartitionInterval)
    ):
        names += ["topics", "ranges"]
    instances, arguments = _expanded(task, context, templates, names)
    identities = [tuple(_text(instance.get(name)) for name in arguments) for instance in instances]
    if len(set(identities)) == len(identities) and all(map(any, identities)):
        return is_literal(identities) or _differ_in_topics(task, context, templates)
    pipeline = templates.get("pipeline")
    if task.pipeline and pipeline is not None and not is_of_mapped_group(pipeline):
        return _differ_in_topics(task, context, templates)  # each instance renders its own
    kept = sorted(task.function_arguments.intersection(*instances)) if instances else []
    raise ConfigurationError(
        f"task {task.task_id!r} is mapped (map index {index}), and its instances would be one run: "
        "the first does its part, the others find it committed. Expand over source_partition alone, each "
        "partition once, or give each instance a pipeline of its own (and, unless it reads intervals, a "
        "group_id), expanded with the rest or templated"
        + (f"; {', '.join(kept)} goes to the function, which has a parameter of that name" if kept else "")
    )


def _expanded(
    task: Any, context: Context, templates: Mapping[str, Any], names: Sequence[str]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the expanded arguments of each instance, and the names of those that are run parameters."""
    group = task.get_closest_mapped_task_group()
    if group is not None:
        arguments = [getattr(templates.get(name), "_key", "") for name in names]
        return _instances(group._expand_input, context), arguments  # noqa: SLF001 - it has no other name
    mapped = context["dag"].get_task(task.task_id)
    # A decorated task is expanded over the arguments of its call.
    expansion = getattr(mapped, "op_kwargs_expand_input", getattr(mapped, "expand_input", None))
    arguments = [name for name in names if name not in task.function_arguments]
    return _instances(expansion, context), arguments


def _differ_in_topics(task: Any, context: Context, templates: Mapping[str, Any]) -> bool:
    """Return whether each instance reads different topics: a record's topics must be the run's (law 7)."""
    instances, arguments = _expanded(task, context, templates, ["topics"])
    given = [instance.get(name) for instance in instances for name in arguments]
    if not all(given) or not is_literal(given):
        return False
    return len({frozenset(parse_topics("topics", topics)) for topics in given}) == len(instances)


def is_of_mapped_group(value: Any) -> bool:
    """Return whether a value is an argument of the mapped task group that the task is in."""
    return hasattr(value, "_key")


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _instances(expansion: Any, context: Context) -> list[Mapping[str, Any]]:
    """Return the arguments of each instance that ``expand()`` or ``expand_kwargs()`` creates."""

    def resolved(value: Any) -> Any:
        return value.resolve(context) if hasattr(value, "resolve") else value

    if expansion is None:
        return []
    given = resolved(expansion.value)
    if isinstance(given, Mapping):
        values = [_elements(resolved(value)) for value in given.values()]
        return [dict(zip(given, combination, strict=True)) for combination in itertools.product(*values)]
    return [resolved(instance) for instance in _elements(given)]


def _elements(values: Any) -> list[Any]:
    """Return the elements that a task is expanded over, without those on which a ``.map()`` function raises.

    Airflow skips or fails only the instance of such an element.
    """
    values = _requested(values)
    if not attrs.has(type(values)):
        return list(values)
    elements = []
    for index in range(len(values)):
        with contextlib.suppress(Exception):
            elements.append(values[index])
    return elements


def _requested(values: Any) -> Any:
    """Request all results of a mapped task at once: Airflow's sequence would request them one by one."""
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

    if isinstance(values, LazyXComSequence):
        return values[:]
    if not attrs.has(type(values)):
        return values
    if hasattr(values, "callables"):
        return attrs.evolve(values, value=_requested(values.value))
    return attrs.evolve(values, values=[_requested(part) for part in values.values])
