#!/usr/bin/env python3
"""Write docs/parameters.md from signatures and docstrings: ``python tools/parameters_reference.py``.

A test compares the page with the tool's output for the current code; every parameter must have a text.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "parameters.md"

HEAD = """\
<!-- Made by tools/parameters_reference.py from signatures and docstrings: change those, then run it. -->
# Parameters

Keyword arguments with type and default; those without a default are required. Operators and sensors also
take those of Airflow's base classes (`retries`, `pool`, `default_args`, ...). Those with an asterisk take a
Jinja template or the result of another task. Import everything `from airflow_eos`; `@task.kafka_eos` takes
the parameters of `ReadProcessWriteOperator` except `process`.
"""
GROUPS = {
    "Operators": (
        "ReadProcessWriteOperator",
        "ReadProcessWriteSubmitOperator",
        "ReplayOffsetRangesOperator",
    ),
    "Sensors": ("KafkaLagSensor", "KafkaDataIntervalSensor", "RunCommittedSensor"),
    "Triggers": ("OffsetRangeTrigger",),
    "What is read": ("Cursor", "Interval", "PartitionInterval", "Explicit"),
    "Without Airflow": ("RunSpec", "LedgerSettings"),
}
_PARAM = re.compile(r":param (\w+): *(.*?)(?=\n *:(?:param|raises|returns)\b|\n\s*\n|\Z)", re.DOTALL)
_ROLE = re.compile(r":(?:class|func|mod|meth|data|attr):`~?([^`]*)`")
_TEMPLATED = r"\*"
_HIDDEN = ("self", "kwargs", "args")
_NOT_LISTED = {
    "ReplayOffsetRangesOperator": ("ranges", "allowed_lateness", "partition_duration", "accept_deleted"),
    "RunSpec": ("round", "task", "try_number"),  # set by the engine and by Airflow's operators
}


def render(package: Any) -> str:
    """Return the page."""
    parts = [HEAD.rstrip()]
    lists: dict[str, dict[str, str]] = {}
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            items = _items(getattr(package, name))
            parts.append(_section(getattr(package, name), items, lists))
            lists[name] = items
    return "\n\n".join(parts) + "\n"


def unexplained(package: Any) -> list[str]:
    """Return the parameters of this package's signatures that no docstring explains."""
    classes = [getattr(package, name) for names in GROUPS.values() for name in names]
    return [
        f"{operator.__name__}.{name}"
        for operator in classes
        for name in _own(operator)
        if name not in _explained(operator)
    ]


def _section(operator: type, items: dict[str, str], earlier: dict[str, dict[str, str]]) -> str:
    """Return heading, summary and list; refers to an earlier class for shared parameters."""
    parts = [f"### {operator.__name__}", _markdown((inspect.getdoc(operator) or "").partition("\n\n")[0])]
    own, shared = items, []
    for name, others in earlier.items():
        same = [parameter for parameter in own if _is_same(operator, own[parameter], others.get(parameter))]
        if same:
            left_out = [parameter for parameter in others if parameter not in same]
            few = len(left_out) < len(same)
            names = ", ".join(f"`{parameter}`" for parameter in (left_out if few else same))
            shared.append(f"in [{name}](#{name.lower()}){', except' if few else ':'} {names}")
            own = {parameter: item for parameter, item in own.items() if parameter not in same}
    if shared:
        parts.append(f"As {'; '.join(shared)}.")
    return "\n\n".join([*parts, "\n".join(own.values())])


def _is_same(operator: type, item: str, other: str | None) -> bool:
    """Return whether an earlier class has the same parameter, ignoring templating if this class has none."""
    if other and not hasattr(operator, "template_fields"):
        other = other.replace(_TEMPLATED, "", 1)
    return item == other


def _items(operator: type) -> dict[str, str]:
    """Return the items of a class's list, by parameter."""
    explained, own = _explained(operator), _own(operator)
    names = [*own, *(name for name in explained if name not in own)]
    templated = getattr(operator, "template_fields", ())
    items = {}
    for name in names:
        text = _markdown(explained.get(name, "")).replace("(templated)", "").strip()
        # Parameters of Airflow's own classes may differ between its versions.
        facts = _declared(operator, own[name]) if name in own else f"`{name}`, as Airflow has it"
        items[name] = f"- {facts}{_TEMPLATED if name in templated else ''}: {text}"
    return items


def _own(operator: type) -> dict[str, inspect.Parameter]:
    """Return the parameters that this package's classes define, those without a default first."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in operator.__mro__:
        if base.__module__.startswith("airflow_eos") and "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name not in (*_HIDDEN, *_NOT_LISTED.get(operator.__name__, ())):
                    parameters.setdefault(name, parameter)
    return dict(sorted(parameters.items(), key=lambda item: item[1].default is not inspect.Parameter.empty))


def _explained(operator: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for base in operator.__mro__:
        if base.__module__.startswith("airflow_eos"):
            for name, text in _PARAM.findall(vars(base).get("__doc__") or ""):
                if name not in (*_HIDDEN, *_NOT_LISTED.get(operator.__name__, ())):
                    texts.setdefault(name, text)
    return texts


def _declared(operator: type, parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return f"`{' '.join(f'{parameter.name}: {text}{_default(operator, parameter)}'.split())}`"


def _default(operator: type, parameter: inspect.Parameter) -> str:
    value = parameter.default
    fields = dataclasses.fields(operator) if dataclasses.is_dataclass(operator) else ()
    factories = {field.name: field.default_factory for field in fields}
    factory = factories.get(parameter.name, dataclasses.MISSING)
    if isinstance(factory, type | FunctionType):
        return f" = {factory.__name__}()"
    if value is inspect.Parameter.empty:
        return ""
    if type(value) is object:
        return " = ..."
    if repr(value) == object.__repr__(value):
        return f" = {type(value).__name__}()"
    is_time = type(value).__name__ == "timedelta"
    return f" = {value.total_seconds():g} s" if is_time else f" = {value!r}"


def _markdown(text: str) -> str:
    text = " ".join(text.split())
    text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(ROOT))
    import airflow_eos

    PAGE.write_text(render(airflow_eos), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
