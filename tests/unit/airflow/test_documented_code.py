"""Operators and commands in the documentation are accepted as they are written there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_eos
from airflow_eos.cli.main import parser
from tests.support.airflow_parser import get_parser
from tests.support.documented_code import ELSEWHERE, FUNCTIONS, ROOT, blocks, operators

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What a reader would put in place of an ellipsis.
FILLED_IN = {
    "task_id": "task",
    "process": "../spark_apps/flights.py:process",
    "topics": ["flights"],
    "group_id": "group",
}


def commands() -> list[str]:
    """Return the commands of all console blocks, with their continuation lines."""
    lines: set[str] = set()
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            lines |= {line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()}
    return sorted(lines)


def named(start: str) -> list[str]:
    every = [command for command in commands() if re.match(start, command)]
    assert every, f"no command begins with {start}"
    return every


def test_every_block_of_python_is_an_excerpt_or_run() -> None:
    """A block that is new is an excerpt of a file (``# its/path.py``), or gets a test."""
    assert set(blocks()) == {*operators(), *FUNCTIONS, *ELSEWHERE}
    assert [runner for runner in ELSEWHERE.values() if not (ROOT / runner).exists()] == []


@pytest.mark.parametrize("block", operators().values(), ids=operators())
def test_an_operator_is_accepted(block: str) -> None:
    """Inside a Dag, with the ellipses filled in."""
    source = re.sub(r"\(\s*\.\.\.,\s*", "(**FILLED_IN, ", block)
    public: dict[str, Any] = {name: getattr(airflow_eos, name) for name in airflow_eos.__all__}
    filled_in = {name: value for name, value in FILLED_IN.items() if not re.search(rf"\b{name}=", block)}
    with DAG("documented", schedule=None) as dag:
        exec(
            compile(source, str(ROOT / "dags" / "pasted.py"), "exec"),
            {**public, "FILLED_IN": filled_in, "process": lambda df: df},
        )
    assert len(dag.tasks) == 1


@pytest.mark.parametrize("command", named(r"airflow eos "))
def test_a_command_of_airflows_is_accepted(command: str) -> None:
    """Its options and their values."""
    arguments = shlex.split(command, comments=True)[1:]
    get_parser().parse_args(arguments)


@pytest.mark.parametrize("command", named(r"python -m airflow_eos "))
def test_a_command_without_airflow_is_accepted(command: str) -> None:
    """Its options and their values."""
    parser().parse_args(shlex.split(command, comments=True)[3:])


@pytest.mark.parametrize("command", named(r"pip install '?airflow-eos"))
def test_an_extra_that_is_installed_exists(command: str) -> None:
    """It is an extra of this package."""
    text = (ROOT / "pyproject.toml").read_text()
    for extras in re.findall(r"airflow-eos\[([\w,]+)\]", command):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", text, re.MULTILINE), extra


@pytest.mark.parametrize("command", named(r"(?:\w+=\S+ )?\S*python -m "))
def test_a_module_that_is_run_exists(command: str) -> None:
    """So do the test files that are passed to it."""
    words = shlex.split(command, comments=True)
    module, rest = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
    assert importlib.util.find_spec(module) is not None
    if module == "pytest":
        files = [word.partition("::")[0] for word in rest if word.startswith("tests/")]
        assert all(Path(ROOT / file).exists() for file in files)
