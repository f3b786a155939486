#!/usr/bin/env python3
"""Write the reference in docs/cli.md from the commands' definition: ``python tools/cli_reference.py``.

The part above the mark is written by hand and kept. A test compares the rest with the definition.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
MARK = "<!-- Below this line: made by tools/cli_reference.py. -->\n"


def render(commands: Any, common: Any) -> str:
    """Return the reference; an option that several commands share is explained once."""
    items = Counter(_item(option) for command in commands for option in command.options)
    shared = [item for item, count in items.items() if count > 1]
    parts = [
        "Every command also takes:\n\n" + _listed(map(_item, common)),
        "An option without a text below means:\n\n" + _listed(shared),
    ]
    for command in commands:
        own = [
            (usage, "" if (usage, text) in shared else text) for usage, text in map(_item, command.options)
        ]
        parts.append(f"### {command.name}\n\n{command.description}\n\n{_listed(own)}".rstrip())
    return "\n\n".join(parts) + "\n"


def _listed(items: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- {usage}: {text}".removesuffix(": ") for usage, text in items)


def _item(option: Any) -> tuple[str, str]:
    """Return an option's usage and help text."""
    return _usage(option), _help(option)


def _usage(option: Any) -> str:
    settings = option.settings
    if settings.get("action") == "store_true":
        return f"`{option.flag}`"
    value = settings.get("metavar") or "|".join(settings.get("choices", ())) or option.flag[2:].upper()
    value = " ".join(value) if isinstance(value, tuple) else value
    return f"`{option.flag} {value}`"


def _help(option: Any) -> str:
    return f"required: {option.help}" if option.settings.get("required") else str(option.help)


def main() -> None:
    """Write the page's lower part."""
    sys.path.insert(0, str(ROOT))
    from airflow_eos.cli.definition import COMMANDS, COMMON

    head = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n{render(COMMANDS, COMMON)}", "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
