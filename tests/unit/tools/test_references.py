"""Pages that are made from the code are current."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("name", ["ReadProcessWriteOperator", "ReadProcessWriteSubmitOperator"])
def test_what_editors_show_of_an_operator_is_what_it_takes(name: str) -> None:
    """Every parameter of this package by its type and default, where a default can be written there."""
    operator = getattr(airflow_eos, name)
    module = ast.parse(Path(inspect.getfile(operator)).read_text("utf-8"))
    inits = (one for one in ast.walk(module) if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    shown = max((one.args for one in inits), key=lambda arguments: len(arguments.kwonlyargs))
    found = {
        one.arg: (ast.unparse(one.annotation or ast.Constant(None)), default and ast.unparse(default))
        for one, default in zip(shown.kwonlyargs, shown.kw_defaults, strict=True)
    }
    for parameter, real in tool("parameters_reference")._own(operator).items():
        kind, default = found.pop(parameter)
        assert kind == real.annotation, parameter
        assert (default is None) == (real.default is inspect.Parameter.empty), parameter
        if default not in (None, "..."):
            assert ast.literal_eval(default) == real.default, parameter
    # The rest is of Airflow's own class, and explained here.
    assert found.keys() <= tool("parameters_reference")._explained(operator).keys()
