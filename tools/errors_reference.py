#!/usr/bin/env python3
"""Write docs/errors.md from the classes of ``airflow_eos.exceptions``: ``python tools/errors_reference.py``.

The part above the mark is written by hand and kept. A test compares the rest with the classes.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "errors.md"
MARK = "<!-- Below this line: made by tools/errors_reference.py. -->\n"
_NOTHING = "This try committed nothing."
"""Text of ``Safe`` that the page abbreviates to "nothing committed"."""
_LABEL = re.compile(r"^(Safe|Do): ")


def render(exceptions: Any, retry_after: Any, exit_codes: Any) -> str:
    """Return the reference.

    :param exceptions: the module with the classes.
    :param retry_after: returns the retry policy's action for a class of errors.
    :param exit_codes: exit codes by the kind of process that an error ends.
    """
    kinds = classes(exceptions)
    codes = ", ".join(f"{process} with {code}" for process, code in exit_codes.items())
    families = "\n".join(_families(kinds))
    sections = [_section(kind, retry_after(kind)) for kind in kinds]
    head = [f"An error ends {codes}.", "Classes and their subclasses:", families, "## Each error"]
    return "\n\n".join([*head, *sections]) + "\n"


def classes(exceptions: Any) -> list[type]:
    """Return the classes of the module, each after its base."""
    own = [kind for kind in vars(exceptions).values() if inspect.isclass(kind)]
    own = [kind for kind in own if kind.__module__ == exceptions.__name__]
    return _with_subclasses(exceptions.EosError, own)


def paragraphs(kind: type) -> dict[str, str]:
    """Return the paragraphs of a class's own docstring: ``What`` and, if present, ``Safe`` and ``Do``."""
    texts: dict[str, list[str]] = {"What": []}
    label = "What"
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        if line.startswith(":param") or (label == "What" and not line):
            label = "other"
        if start := _LABEL.match(line):
            label = start[1]
        texts.setdefault(label, []).append(_LABEL.sub("", line))
    return {label: "\n".join(lines).strip() for label, lines in texts.items() if label != "other"}


def explained(kind: type, label: str) -> str:
    """Return a paragraph of a class, or of the nearest base that has it."""
    return next(text[label] for base in kind.__mro__ if label in (text := paragraphs(base)))


def commands(text: str) -> list[str]:
    """Return the commands of a paragraph: its indented lines."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def exit_codes() -> dict[str, str]:
    """Return the exit codes by the kind of process that an error ends."""
    from airflow_eos.cli.definition import REFUSED
    from airflow_eos.engine.application import FAILED_CODE

    return {
        "a [command](cli.md) (`airflow eos`, `python -m airflow_eos`)": f"exit code {REFUSED}",
        "an [application](spark-submit.md) of `spark-submit` (`airflow_eos.spark.main`)": str(FAILED_CODE),
    }


def _with_subclasses(kind: type, own: list[type]) -> list[type]:
    return [kind, *(each for child in own if child.__base__ is kind for each in _with_subclasses(child, own))]


def _families(kinds: list[type]) -> list[str]:
    """Return a line for each class that has subclasses."""
    families = {base: [kind for kind in kinds if kind.__base__ is base] for base in kinds}
    return [f"- {_link(base)}: {', '.join(map(_link, own))}" for base, own in families.items() if own]


def _section(kind: type, retry: Any) -> str:
    safe = explained(kind, "Safe")
    facts = f"nothing committed, {retry.value}" if safe == _NOTHING else retry.value
    parts = [f"### {kind.__name__}", f"{_markdown(explained(kind, 'What'))} *{facts.capitalize()}.*"]
    if safe != _NOTHING:
        parts.append(f"**Safe:** {_markdown(safe)}")
    return "\n\n".join([*parts, f"**Do:** {_markdown(explained(kind, 'Do'))}"])


def _markdown(text: str) -> str:
    prose = " ".join(line for line in text.splitlines() if line and not line.startswith("    "))
    prose = prose.replace("``", "`")
    copied = "\n".join(commands(text))
    return f"{prose}\n\n```console\n{copied}\n```" if copied else prose


def _link(kind: type) -> str:
    return f"[`{kind.__name__}`](#{kind.__name__.lower()})"


def main() -> None:
    """Write the page's lower part."""
    sys.path.insert(0, str(ROOT))
    from airflow_eos import exceptions
    from airflow_eos.operators.retriable import retry_after

    head = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n{render(exceptions, retry_after, exit_codes())}", "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
