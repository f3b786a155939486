#!/usr/bin/env python3
"""Write docs/parameters.md from signatures and docstrings: ``python tools/parameters_reference.py``.

A test compares the page with what this makes of the current code, and asks that every parameter is explained.
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

All are keyword arguments, and operators and sensors take those of Airflow's base classes besides (`retries`,
`pool`, `default_args`, ...). What is templated may be a Jinja template or the result of another task.
Everything here is imported `from airflow_eos`; `@task.kafka_eos` takes the parameters of
`ReadProcessWriteOperator` except `process`.
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
_HIDDEN = ("self", "kwargs", "args")
_WITHOUT_USE = {
    "ReplayOffsetRangesOperator": ("ranges", "allowed_lateness", "partition_duration", "accept_deleted")
}
_FEW = 5
"""Up to so many rows of an earlier class are repeated."""


def render(package: Any) -> str:
    """Return the page."""
    parts = [HEAD.rstrip()]
    tables: dict[str, dict[str, str]] = {}
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            rows = _rows(getattr(package, name))
            parts.append(_section(getattr(package, name), rows, tables))
            tables[name] = rows
    return "\n\n".join(parts) + "\n"


def unexplained(package: Any) -> list[str]:
    """Return the parameters of our own signatures that no docstring explains."""
    classes = [getattr(package, name) for names in GROUPS.values() for name in names]
    return [
        f"{operator.__name__}.{name}"
        for operator in classes
        for name in _own(operator)
        if name not in _explained(operator)
    ]


def _section(operator: type, rows: dict[str, str], earlier: dict[str, dict[str, str]]) -> str:
    """Return heading, summary and table; parameters of an earlier class are named, not repeated."""
    parts = [f"### {operator.__name__}", _markdown((inspect.getdoc(operator) or "").partition("\n\n")[0])]
    own = rows
    for name, others in earlier.items():
        same = [parameter for parameter, row in own.items() if others.get(parameter) == row]
        if len(same) > _FEW:
            named = ", ".join(f"`{parameter}`" for parameter in same)
            parts.append(f"As in [{name}](#{name.lower()}): {named}.")
            own = {parameter: row for parameter, row in own.items() if parameter not in same}
    parts.append("\n".join(["| parameter | type | default | |", "|---|---|---|---|", *own.values()]))
    return "\n\n".join(parts)


def _rows(operator: type) -> dict[str, str]:
    """Return the rows of a class's table, by parameter."""
    explained, own = _explained(operator), _own(operator)
    names = [*own, *(name for name in explained if name not in own)]
    templated = getattr(operator, "template_fields", ())
    rows = {}
    for name in names:
        parameter = own.get(name)
        text = _markdown(explained.get(name, "")).replace("(templated)", "").strip()
        if name in templated:
            text += " Templated."
        # What Airflow's own class takes may differ between its versions.
        facts = (
            f"{_kind(parameter)} | {_default(operator, parameter)}" if parameter else "| as Airflow has it"
        )
        rows[name] = f"| `{name}` | {facts} | {_escaped(text)} |"
    return rows


def _own(operator: type) -> dict[str, inspect.Parameter]:
    """Return the parameters that this package's classes define, those without a default first."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in operator.__mro__:
        if base.__module__.startswith("airflow_eos") and "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name not in (*_HIDDEN, *_WITHOUT_USE.get(operator.__name__, ())):
                    parameters.setdefault(name, parameter)
    return dict(sorted(parameters.items(), key=lambda item: item[1].default is not inspect.Parameter.empty))


def _explained(operator: type) -> dict[str, str]:
    texts: dict[str, str] = {}
    for base in operator.__mro__:
        if base.__module__.startswith("airflow_eos"):
            for name, text in _PARAM.findall(vars(base).get("__doc__") or ""):
                if name not in (*_HIDDEN, *_WITHOUT_USE.get(operator.__name__, ())):
                    texts.setdefault(name, text)
    return texts


def _kind(parameter: inspect.Parameter) -> str:
    if parameter.annotation is inspect.Parameter.empty:
        return ""
    kind = parameter.annotation
    return f"`{_escaped(kind if isinstance(kind, str) else inspect.formatannotation(kind))}`"


def _default(operator: type, parameter: inspect.Parameter) -> str:
    value = parameter.default
    fields = dataclasses.fields(operator) if dataclasses.is_dataclass(operator) else ()
    factories = {field.name: field.default_factory for field in fields}
    factory = factories.get(parameter.name, dataclasses.MISSING)
    if isinstance(factory, type | FunctionType):
        return f"`{factory.__name__}()`"
    if value is inspect.Parameter.empty:
        return "required"
    if type(value) is object:
        return "see text"
    is_time = type(value).__name__ == "timedelta"
    return f"{value.total_seconds():g} s" if is_time else f"`{_escaped(repr(value))}`"


def _markdown(text: str) -> str:
    text = " ".join(text.split())
    text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(ROOT))
    import airflow_eos

    PAGE.write_text(render(airflow_eos), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
