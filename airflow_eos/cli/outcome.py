"""The outcome of a command, and its output formats."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_eos.cli.definition import DONE
from airflow_eos.printable import printable

Row = Mapping[str, Any]
Gauge = tuple[str, float, Mapping[str, str]]
"""A metric: name, value, tags."""

DOCUMENTS = ("json", "yaml")
"""Formats that print all data, or an error, as a single document."""
_STDOUT, _STDERR = 1, 2
_LEAST_ROOM = 20  # columns for a value, on the narrowest terminal


class WrongUsage(Exception):
    """The options do not fit together; exit code 2."""


@dataclass(frozen=True)
class Outcome:
    """The result of a command.

    :param data: printed unchanged by ``--output json`` and ``yaml``.
    :param tables: printed by ``--output table`` and ``plain``, one after the other under their titles; a dash
        for no rows. Control characters are escaped.
    """

    data: Any
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    code: int = DONE

    def render(self, output: str, width: int | None = None) -> str:
        """Return the text for standard output.

        :param width: columns of the terminal; a wider table is printed vertically, a line for each value.
            None: no limit.
        """
        if output in DOCUMENTS:
            return document(self.data, output)
        tables = (_table(title, rows, output, width) for title, rows in self.tables.items())
        return "\n\n".join(tables)


def document(data: Any, output: str) -> str:
    """Return data as one of :data:`DOCUMENTS`."""
    if output == "json":
        return json.dumps(data, indent=2)
    import yaml  # type: ignore[import-untyped]

    # Via JSON, so that tuples and subclasses of str become plain lists and texts here, too.
    return str(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False, allow_unicode=False)).rstrip()


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Redirect everything printed in this block to standard error; :func:`write` comes after it.

    The file descriptor is changed, too: loggers may hold the stream already, and child processes inherit it.
    """
    if sys.stdout is None or sys.stderr is None:
        yield
        return
    stdout = sys.stdout
    stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def write(text: str) -> None:
    """Write a text and a line end to standard output.

    If it is closed, or its disk is full, the command has still done its work, and the exit code stays.
    Characters that its encoding lacks are escaped.
    """
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201
    except OSError as error:
        # Python flushes the buffered rest at exit.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            write_error(f"standard output: {error}")


def write_error(line: str) -> None:
    """Write a line to standard error; control characters are escaped."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(printable(line), file=sys.stderr)  # noqa: T201


def _table(title: str, rows: Sequence[Row], output: str, width: int | None) -> str:
    if not rows:
        return f"{title}\n-"
    is_plain = output == "plain"  # for other programs: a line for each row, and no rule
    text = "\n".join([title, *_lines(rows, "  " if is_plain else " | ", rule=not is_plain)])
    if is_plain or width is None or max(map(len, text.splitlines())) <= width:
        return text
    return "\n".join([title, *(_vertical(number, row, width) for number, row in enumerate(rows, 1))])


def _vertical(number: int, row: Row, width: int) -> str:
    """Return a row vertically, with a line for each value; wraps long values."""
    cells = {name: _text(value) for name, value in row.items() if value is not None}
    indent = max(map(len, cells), default=0) + 3
    room = max(width - indent, _LEAST_ROOM)
    lines = [f"--- {number} ---"]
    for name, text in cells.items():
        first, *more = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        lines += [f"{name.ljust(indent - 3)} | {first}".rstrip(), *(f"{' ' * indent}{line}" for line in more)]
    return "\n".join(lines)


def _lines(rows: Sequence[Row], between: str, *, rule: bool) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(names))]
    if rule:
        lines.insert(1, ["=" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return [between.join(line).rstrip() for line in padded]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return printable(value if isinstance(value, str) else json.dumps(value))
