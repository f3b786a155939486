#!/usr/bin/env python3
"""Write docs/configuration.md from the provider info: ``python tools/config_reference.py``.

A test compares the page with the tool's output for the current provider info.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
_FIRST_VERSION = "0.1.0"

HEAD = """\
<!-- Made by tools/config_reference.py from the provider info: change that, then run the tool. -->
# Configuration

Set options in `airflow.cfg` or in environment variables; a parameter of an operator, a sensor or a command
wins.

The extra of a connection of type `kafka` (parameter `kafka_config_id`, default `kafka_default`) configures
the clients, in librdkafka's names as in the Kafka provider. This package adds `eos.max.batch.bytes` and
`eos.max.record.headers`, which [limit](security.md#hostile-input) what a record batch of a source may cost.

"""


def render(info: dict[str, Any]) -> str:
    """Return the page."""
    parts = [HEAD.rstrip()]
    for section, content in info["config"].items():
        parts.append(f"## [{section}]\n\n{_paragraph(content['description'])}")
        for name, option in content["options"].items():
            facts = [option["type"]]
            facts += [f"{key} `{option[key]}`" for key in ("default", "example") if option.get(key)]
            facts += [f"since {option['version_added']}"] * (option["version_added"] != _FIRST_VERSION)
            variable = f"`AIRFLOW__{section.upper()}__{name.upper()}`: {', '.join(facts)}."
            parts.append(f"### {name}\n\n{_paragraph(option['description'])}\n\n{variable}")
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(ROOT))
    from airflow_eos.provider_info import get_provider_info

    PAGE.write_text(render(get_provider_info()), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
