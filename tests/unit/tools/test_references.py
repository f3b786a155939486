"""Pages that are generated from the code are up to date."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import airflow_eos
from airflow_eos import exceptions
from airflow_eos.cli.definition import COMMANDS, COMMON
from airflow_eos.cli.main import parser
from airflow_eos.exceptions import CursorMoved, EosError, ProcessFailed, RunFailed
from airflow_eos.operators.retriable import retry_after
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
    """`python tools/config_reference.py` regenerates it."""
    reference = tool("config_reference")
    assert reference.PAGE.read_text("utf-8") == reference.render(get_provider_info())


def test_command_page_is_what_the_definition_says() -> None:
    """`python tools/cli_reference.py` regenerates it."""
    reference = tool("cli_reference")
    _, mark, generated = reference.PAGE.read_text("utf-8").partition(reference.MARK)
    assert mark
    assert generated == "\n" + reference.render(COMMANDS, COMMON)


def test_parameter_page_is_what_the_signatures_say() -> None:
    """`python tools/parameters_reference.py` regenerates it; every parameter has an explanation."""
    reference = tool("parameters_reference")
    assert reference.PAGE.read_text("utf-8") == reference.render(airflow_eos)
    assert reference.unexplained(airflow_eos) == []


ERRORS = tool("errors_reference")


def test_error_page_is_what_the_docstrings_and_the_table_of_retries_say() -> None:
    """`python tools/errors_reference.py` regenerates it."""
    _, mark, generated = ERRORS.PAGE.read_text("utf-8").partition(ERRORS.MARK)
    assert mark
    assert generated == "\n" + ERRORS.render(exceptions, retry_after, ERRORS.exit_codes())


def test_every_error_has_an_entry() -> None:
    """Each class describes what happened; what is safe and what to do may come from its base."""
    kinds = ERRORS.classes(exceptions)
    headings = re.findall(r"^### (\w+)$", ERRORS.PAGE.read_text("utf-8"), re.MULTILINE)
    assert headings == [kind.__name__ for kind in kinds]
    for kind in kinds:
        assert kind.__doc__ and ERRORS.paragraphs(kind)["What"], kind  # noqa: PT018 - one docstring
        assert len(ERRORS.explained(kind, "Safe")) > 20, kind
        assert len(ERRORS.explained(kind, "Do")) > 20, kind


@pytest.mark.parametrize("kind", ERRORS.classes(exceptions), ids=lambda kind: kind.__name__)
def test_commands_of_the_error_page_are_commands(kind: type[EosError]) -> None:
    """The commands' parser accepts each of them, with words in capitals for the reader's values."""
    for command in ERRORS.commands(ERRORS.explained(kind, "Do")):
        program, group, *arguments = shlex.split(command)
        assert (program, group) == ("airflow", "eos"), command
        needs_cluster = next(entry.cluster for entry in COMMANDS if entry.name == arguments[0])
        parser().parse_args([*arguments, *(["--bootstrap-servers", "broker:9092"] * needs_cluster)])


def test_links_of_the_error_page_lead_to_headings() -> None:
    """Renaming a heading requires changing its links."""
    for page, anchor in re.findall(r"\]\(([\w/-]*(?:\.md)?)#([\w-]+)\)", ERRORS.PAGE.read_text("utf-8")):
        target = (ERRORS.PAGE.parent / page) if page else ERRORS.PAGE
        titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, anchor


def test_the_text_of_an_error_ends_with_its_entry_and_has_no_other() -> None:
    """Also if its message quotes another error, or its class is in another module."""
    cause = CursorMoved("somebody else commits to this group")
    assert str(cause) == "somebody else commits to this group (docs/errors.md#cursormoved)"
    error = RunFailed(f"aborted after 3 attempts. Last error: {cause}")
    assert error.message == "aborted after 3 attempts. Last error: somebody else commits to this group"
    assert str(error) == f"{error.message} (docs/errors.md#runfailed)"
    assert str(RunFailed(str(error))) == str(error)
    assert str(type("OrderRefused", (ProcessFailed,), {})("no")) == "no (docs/errors.md#processfailed)"


@pytest.mark.parametrize("name", ["ReadProcessWriteOperator", "ReadProcessWriteSubmitOperator"])
def test_what_editors_show_of_an_operator_is_what_it_takes(name: str) -> None:
    """Every parameter of this package with its type, and its default if that can be written there."""
    operator = getattr(airflow_eos, name)
    module = ast.parse(Path(inspect.getfile(operator)).read_text("utf-8"))
    inits = (
        node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    shown = max((init.args for init in inits), key=lambda arguments: len(arguments.kwonlyargs))
    parameters = {
        argument.arg: (
            ast.unparse(argument.annotation or ast.Constant(None)),
            default and ast.unparse(default),
        )
        for argument, default in zip(shown.kwonlyargs, shown.kw_defaults, strict=True)
    }
    for parameter, real in tool("parameters_reference")._own(operator).items():
        kind, default = parameters.pop(parameter)
        assert kind == real.annotation, parameter
        assert (default is None) == (real.default is inspect.Parameter.empty), parameter
        if default not in (None, "..."):
            assert ast.literal_eval(default) == real.default, parameter
    # The others belong to Airflow's own class, and are explained here.
    assert parameters.keys() <= tool("parameters_reference")._explained(operator).keys()


def test_the_page_of_commands_has_a_document_for_each_of_them() -> None:
    """The output with ``--output json`` is documented by hand."""
    rows = re.findall(r"^\| `([a-z-]+)` \| `\{", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(command.name for command in COMMANDS)
