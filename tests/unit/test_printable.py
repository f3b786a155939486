"""Text from others is shown, never interpreted: control characters are escaped for terminals and logs."""

from __future__ import annotations

import json
import logging
from argparse import Namespace

import pytest
import yaml

from airflow_eos.broker.librdkafka import QuietLog
from airflow_eos.cli.definition import COMMANDS
from airflow_eos.cli.execution import carry_out
from airflow_eos.cli.outcome import Outcome
from airflow_eos.exceptions import GroupNotEmpty
from airflow_eos.printable import printable
from airflow_eos.spark.errors import ErrorMark

HOSTILE = {
    "red\x1b[31m": "red\\x1b[31m",
    "title\x1b]0;x\x07": "title\\x1b]0;x\\x07",
    "one byte \x9b31m": "one byte \\x9b31m",
    "over\rwritten": "over\\rwritten",
    "next\nline": "next\\nline",
    "a\u2028line": "a\\u2028line",
    "turned \u202e round": "turned \\u202e round",
    "half \ud800": "half \\ud800",
    "\0\x7f\x08": "\\x00\\x7f\\x08",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_escape_and_json_is_exact(text):
    """One row stays one line, in cells of any kind and in a column's name."""
    outcome = Outcome({"key": text}, {"rows": [{"key": text, "nested": [text]}]})
    table = outcome.render("table")
    assert HOSTILE[text] in table
    assert table.count("\n") == 3
    assert all(line.isprintable() for line in table.splitlines())
    assert json.loads(outcome.render("json")) == {"key": text}
    assert outcome.render("json").replace("\n", "").isprintable()
    assert outcome.render("plain").count("\n") == 2
    assert all(line.isprintable() for line in outcome.render("plain").splitlines())
    assert yaml.safe_load(outcome.render("yaml")) == {"key": text}
    assert outcome.render("yaml").replace("\n", "").isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_an_error_of_a_command_is_one_line_that_a_terminal_can_show(text, capsys, monkeypatch):
    """Also if the message quotes a name from the cluster; the JSON object has the name itself."""

    def fails(*_):
        raise GroupNotEmpty(text)

    monkeypatch.setattr("airflow_eos.cli.execution.call", fails)
    assert carry_out(COMMANDS[0], Namespace(output="json"), lambda _: None) == 1
    output = capsys.readouterr()
    assert output.err == f"GroupNotEmpty: {HOSTILE[text]} (docs/errors.md#groupnotempty)\n"
    assert json.loads(output.out)["error"] == {
        "type": "GroupNotEmpty",
        "message": text,
        "docs": "docs/errors.md#groupnotempty",
    }


def test_errors_keep_their_lines_in_logs_and_nothing_else():
    """A task's log shows the text of an error; programs, and Spark's transport, use the message."""
    error = GroupNotEmpty("first\n\tsecond \x1b[2J")
    assert str(error) == "first\n\tsecond \\x1b[2J (docs/errors.md#groupnotempty)"
    assert error.message == "first\n\tsecond \x1b[2J"
    mark = ErrorMark()
    restored = mark.find(mark.text(error))
    assert restored.message == error.message


def test_lines_of_librdkafka_are_escaped(caplog):
    """They quote the brokers' answers."""
    caplog.set_level(logging.DEBUG, "airflow_eos.librdkafka")
    QuietLog().log(7, "%s [%s]", "FAIL", "refused \x1b[31m")
    assert caplog.messages == ["FAIL [refused \\x1b[31m]"]


def test_visible_text_is_left_alone():
    """Also in other scripts."""
    for text in ("", "orders-0 | a\\b", "größer 東京 🙂"):
        assert printable(text) is text
