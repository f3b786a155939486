"""Tables on a narrow terminal."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import pytest

from airflow_eos.cli import execution
from airflow_eos.cli.definition import COMMANDS
from airflow_eos.cli.outcome import Outcome

LONG = " ".join(["word"] * 40)
ROWS = [{"name": "a", "found": LONG, "advice": None}, {"name": "b", "found": "x" * 70, "advice": "do it"}]


def test_a_table_that_fits_stays_one() -> None:
    """A line for each row."""
    text = Outcome({}, {"t": [{"a": 1, "b": "two"}]}).render("table", 80)
    assert text.splitlines() == ["t", "a | b", "= | ===", "1 | two"]


@pytest.mark.parametrize("width", [40, 80])
def test_a_wide_table_stands_upright(width: int) -> None:
    """Within the width, and with every character of every value."""
    text = Outcome({}, {"checks": ROWS}).render("table", width)
    assert max(map(len, text.splitlines())) <= width
    values = "".join(line.partition("|")[2] or line for line in text.splitlines())
    assert LONG.replace(" ", "") + "---2---" in values.replace(" ", "")
    assert values.replace(" ", "").count("x") == 70
    assert "advice" in text.partition("--- 2 ---")[2]
    assert "advice" not in text.partition("--- 2 ---")[0]


def test_only_a_terminal_has_a_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a pipe reads keeps a row in a line."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(execution, "call", lambda *_: Outcome({}, {"checks": ROWS}))
    where: Any = lambda _: None  # noqa: E731
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        execution.carry_out(COMMANDS[0], Namespace(output="table"), where)
        assert ("--- 1 ---" in capsys.readouterr().out) is is_terminal
