"""What a command found, and how it is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.cli.definition import DONE
from airflow_eos.printable import printable

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The answer of a command.

    :param data: printed by ``--output json``, exactly.
    :param tables: printed by ``--output table``, one after the other under their titles; no rows: a dash.
        Control characters are escaped.
    :param code: exit code.
    """

    data: Any
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    code: int = DONE

    def render(self, output: str) -> str:
        """Return the text for standard output."""
        if output == "json":
            return json.dumps(self.data, indent=2)
        return "\n\n".join(_table(title, rows) for title, rows in self.tables.items())


def _table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{title}\n-"
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(names))]
    lines.insert(1, ["=" * width for width in widths])
    text = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([title, *(line.rstrip() for line in text)])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return printable(value if isinstance(value, str) else json.dumps(value))
