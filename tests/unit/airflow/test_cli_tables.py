"""How results are printed: tables, also on a narrow terminal, and documents."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_eos.cli import execution
from airflow_eos.cli.definition import COMMANDS
from airflow_eos.cli.main import main
from airflow_eos.cli.outcome import Outcome
from airflow_eos.exceptions import LedgerMissing

LONG = " ".join(["word"] * 40)
ROWS = [{"name": "a", "found": LONG, "advice": None}, {"name": "b", "found": "x" * 70, "advice": "do it"}]


def fails(*_: Any) -> Outcome:
    raise LedgerMissing("there is none")


def test_a_table_that_fits_stays_one() -> None:
    """It has a line for each row."""
    text = Outcome({}, {"t": [{"a": 1, "b": "two"}]}).render("table", 80)
    assert text.splitlines() == ["t", "a | b", "= | ===", "1 | two"]


def test_plain_is_for_other_programs() -> None:
    """Columns separated by spaces, without rules, one line per row; a bar in a value stays."""
    text = Outcome({}, {"t": [{"a": 1, "b": "x | y"}, {"a": 12, "b": LONG}], "none": []}).render("plain", 40)
    assert text.splitlines() == ["t", "a   b", "1   x | y", f"12  {LONG}", "", "none", "-"]


def test_yaml_says_what_json_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the same order; an error is an object there, too."""
    data = {"b": (1, None, True), "a": {"text": "yes", "none": []}}
    assert yaml.safe_load(Outcome(data).render("yaml")) == json.loads(Outcome(data).render("json"))
    assert Outcome(data).render("yaml").startswith("b:")

    monkeypatch.setattr(execution, "call", fails)
    find_target: Any = lambda _: None  # noqa: E731
    assert execution.carry_out(COMMANDS[0], Namespace(output="yaml"), find_target) == 1
    document = yaml.safe_load(capsys.readouterr().out)
    documentation = "docs/errors.md#ledgermissing"
    assert document == {"error": {"type": "LedgerMissing", "message": "there is none", "docs": documentation}}


@pytest.mark.parametrize("width", [40, 80])
def test_a_wide_table_stands_upright(width: int) -> None:
    """It fits the width, and has every character of every value."""
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
    """The reader of a pipe gets one line per row."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(execution, "call", lambda *_: Outcome({}, {"checks": ROWS}))
    find_target: Any = lambda _: None  # noqa: E731
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        execution.carry_out(COMMANDS[0], Namespace(output="table"), find_target)
        assert ("--- 1 ---" in capsys.readouterr().out) is is_terminal


def broken_pipe() -> Any:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def full_disk() -> Any:
    return Path("/dev/full").open("w")


def closed() -> None:
    """Return what Python has for a standard output that the shell closed."""


@pytest.mark.parametrize("opened", [broken_pipe, full_disk, closed])
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_is_gone_does_not_change_how_a_command_ended(
    opened: Any, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `| head -1`, a full disk, `>&-`: the command is done, and Python has nothing left to flush."""
    monkeypatch.setattr(execution, "call", lambda *_: Outcome({"done": LONG}, {"checks": ROWS}, 3))
    find_target: Any = lambda _: None  # noqa: E731
    stream = opened()
    with contextlib.closing(stream) if stream else contextlib.nullcontext():
        monkeypatch.setattr(sys, "stdout", stream)
        assert execution.carry_out(COMMANDS[0], Namespace(output=output), find_target) == 3
        monkeypatch.setattr(execution, "call", fails)
        assert execution.carry_out(COMMANDS[0], Namespace(output=output), find_target) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop() == "LedgerMissing: there is none (docs/errors.md#ledgermissing)"
    assert lines == (["standard output: [Errno 28] No space left on device"] if opened is full_disk else [])


def test_an_encoding_without_a_character_escapes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONIOENCODING=ascii, or in the C locale of a cron job."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(execution, "call", lambda *_: Outcome({}, {"t": [{"name": "Zürich"}]}))
    find_target: Any = lambda _: None  # noqa: E731
    assert execution.carry_out(COMMANDS[0], Namespace(output="plain"), find_target) == 0
    assert written.getvalue().splitlines()[-1] == b"Z\\xfcrich"


def test_a_configuration_from_a_closed_standard_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example `--config - <&-`."""
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["ledger", "--config", "-"]) == 1
    assert "ConfigurationError: --config -: standard input is closed" in capsys.readouterr().err
