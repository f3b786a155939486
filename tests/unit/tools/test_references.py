"""Pages that are made from the code are current."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import airflow_eos
from airflow_eos.cli.definition import COMMANDS, COMMON
from airflow_eos.provider_info import get_provider_info

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> Any:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_configuration_page_is_what_the_provider_info_says() -> None:
    """`python tools/config_reference.py` makes it again."""
    reference = tool("config_reference")
    assert reference.PAGE.read_text("utf-8") == reference.render(get_provider_info())


def test_command_page_is_what_the_definition_says() -> None:
    """`python tools/cli_reference.py` makes it again."""
    reference = tool("cli_reference")
    _, mark, made = reference.PAGE.read_text("utf-8").partition(reference.MARK)
    assert mark
    assert made == "\n" + reference.render(COMMANDS, COMMON)


def test_parameter_page_is_what_the_signatures_say() -> None:
    """`python tools/parameters_reference.py` makes it again; no parameter is without an explanation."""
    reference = tool("parameters_reference")
    assert reference.PAGE.read_text("utf-8") == reference.render(airflow_eos)
    assert reference.unexplained(airflow_eos) == []
