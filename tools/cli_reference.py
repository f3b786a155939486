#!/usr/bin/env python3
"""Write the reference in docs/cli.md from the commands' definition: ``python tools/cli_reference.py``.

What stands above the mark is written by hand and stays. A test compares the rest with the definition.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
MARK = "<!-- Below this line: made by tools/cli_reference.py. -->\n"


def render(commands: Any, common: Any) -> str:
    """Return the reference."""
    parts = [
        "Every command also takes:\n\n" + _options(common),
        *(
            f"### {command.name}\n\n{command.description}\n\n{_options(command.options)}".rstrip()
            for command in commands
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _options(options: Any) -> str:
    return "\n".join(f"- {_usage(option)}: {_help(option)}" for option in options)


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
