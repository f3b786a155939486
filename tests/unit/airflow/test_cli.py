"""``airflow eos`` and ``python -m airflow_eos``: one definition, two command lines."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import structlog

from airflow_eos.cli import airflow_commands, commands
from airflow_eos.cli import main as plain
from airflow_eos.cli.airflow_commands import _options, get_eos_cli_commands
from airflow_eos.cli.definition import COMMANDS, COMMON, DONE, EXIT_CODES
from airflow_eos.cli.outcome import Outcome, WrongUsage
from airflow_eos.exceptions import ConfigurationError, LedgerMissing
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.names import checked_prefix
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.open_transactions import abort_command
from airflow_eos.spark_host import connect_server
from airflow_eos_testing import class_data
from tests.support.airflow_parser import get_parser

CONNECTION = {"bootstrap.servers": "broker:9092"}


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (subcommands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(subcommands.choices)


def options(parser: argparse.ArgumentParser) -> dict[str, tuple[Any, ...]]:
    return {
        flag: (action.required, action.default, action.choices, action.nargs)
        for action in parser._actions
        for flag in action.option_strings
    }


def test_both_doors_offer_the_same_commands_and_options() -> None:
    """They differ only in how the cluster is named."""
    parsers = actions(plain.parser())
    airflows = actions(actions(get_parser())["eos"])
    assert list(parsers) == [command.name for command in COMMANDS]
    assert set(airflows) == set(parsers)
    asks_brokers = {command.name: command.cluster for command in COMMANDS}
    for name, parser in parsers.items():
        flags, other = options(parser), options(airflows[name])
        plain_only = {"--bootstrap-servers", "--config", "--ledger-key-file"}
        assert set(flags) - set(other) == (plain_only if asks_brokers[name] else set())
        assert set(other) - set(flags) == ({"--conn-id"} if asks_brokers[name] else set())
        assert {flag: flags[flag] for flag in set(flags) & set(other)} == {
            flag: other[flag] for flag in set(flags) & set(other)
        }


def test_every_command_says_what_it_does() -> None:
    """One line of help, a description in sentences, an explanation of every option and exit code."""
    assert set(EXIT_CODES) == {0, 1, 2, 3, 130}
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    for command in COMMANDS:
        assert command.description.endswith(".")
        assert not command.help.endswith(".")
        for option in (*command.options, *COMMON):
            assert option.help
            assert not option.help.endswith(".")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "argument --group: it is empty"),
        ("g\udcff", "'g\\udcff' is not valid UTF-8"),
        ("é" * 4001, "is longer than 8000 bytes"),
    ],
    ids=["empty", "half a character", "too long"],
)
def test_a_text_that_requests_cannot_carry_is_wrong_usage(
    value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every option, on both command lines: no request can encode it."""
    for parser, start in ((plain.parser(), ["--bootstrap-servers", "a:1"]), (get_parser(), [])):
        group = ["eos"] if not start else []
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args([*group, "abort", *start, "--group", value])
        assert message in capsys.readouterr().err
    for option in (option for command in COMMANDS for option in _options(command)):
        kind = option.settings.get("type")
        assert kind or option.settings["action"] == "store_true", option.flag


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--transaction-timeout", "99999999999999"),
        ("doctor", "--delivery-timeout", "2147484"),
        ("init", "--partitions", "100001"),
        ("init", "--replication-factor", "10001"),
        ("ledger", "--limit", "9" * 5000),
        ("plan", "--allowed-lateness", "9" * 18),
        ("ledger", "--limit", "\u00b2"),
        ("status", "--max-lag", "-1"),
    ],
)
def test_a_number_that_nothing_holds_is_wrong_usage(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused by name, before any request."""
    with pytest.raises(SystemExit, match="2"):
        plain.main([*arguments, "--bootstrap-servers", "a:1"])
    assert f"argument {arguments[1]}: {arguments[2][:60]!r} is not a number from " in capsys.readouterr().err


@pytest.mark.jvm
def test_spark_is_warmed_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the archive, and a second call costs nothing."""
    arguments = ["warm-spark", "--folder", str(class_data.folder()), "--output", "json"]
    for _ in range(2):
        assert plain.main(arguments) == DONE
        answer = json.loads(capsys.readouterr().out)
        assert answer["bytes"] == Path(answer["archive"]).stat().st_size > 50_000_000


def test_airflows_help_keeps_what_looks_like_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`[eos]` is a section of the configuration, not markup."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        get_parser().parse_args(["eos", "ledger", "--help"])
    assert "default: [eos] ledger_topic" in capsys.readouterr().out


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Deployment, argparse.Namespace]]:
    """The commands that were called; they return their names, ``doctor`` with exit code 3."""
    calls: list[tuple[str, Deployment, argparse.Namespace]] = []

    def call(name: str, target: Deployment, given: argparse.Namespace) -> Outcome:
        calls.append((name, target, given))
        if name == "status":
            raise LedgerMissing("there is none")
        if name == "verify":
            raise KeyboardInterrupt
        return Outcome({"called": name}, {"called": [{"name": name}]}, 3 if name == "doctor" else 0)

    monkeypatch.setattr("airflow_eos.cli.execution.call", call)
    return calls


def airflow(*arguments: str) -> None:
    given = get_parser().parse_args(["eos", *arguments])
    given.func(given)


def test_airflow_takes_cluster_and_defaults_from_connection_and_configuration(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The connection's settings and [eos] of airflow.cfg; options take precedence."""
    monkeypatch.setenv("AIRFLOW__EOS__PREFIX", "staging")
    airflow("ledger", "--output", "json")
    airflow("ledger", "--ledger-topic", "other", "--prefix", "p")
    (_, first, _), (_, second, _) = called
    assert first.kafka["bootstrap.servers"] == "broker:9092"
    assert (first.ledger.topic, first.prefix) == ("airflow-eos-ledger", "staging")
    assert (second.ledger.topic, second.prefix) == ("other", "p")
    assert "hunter2" not in repr(first)
    printed = capsys.readouterr().out
    assert json.loads(printed[: printed.index("}") + 1]) == {"called": "ledger"}


def test_the_document_stands_alone_on_standard_output(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Airflow's loggers keep the stream that they got first; other processes inherit it."""
    early = os.fdopen(1, "w", closefd=False)
    handler = logging.StreamHandler(early)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])

    def noisy(_: argparse.Namespace) -> None:
        logging.getLogger("any").error("a log line")
        structlog.WriteLogger(early).info("a line of structlog")
        print("a printed line")
        subprocess.run([sys.executable, "-c", "print('a line of a process')"], check=True)

    monkeypatch.setattr(airflow_commands, "_target", noisy)
    airflow("ledger", "--output", "json")
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"called": "ledger"}
    assert sorted(printed.err.splitlines()) == [
        "a line of a process",
        "a line of structlog",
        "a log line",
        "a printed line",
    ]
    os.write(1, b"standard output is there again\n")
    assert capfd.readouterr() == ("standard output is there again\n", "")
    assert called


def test_a_server_prints_its_address_on_the_standard_output_that_it_keeps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before this process becomes the server, whose lines go to it, too."""

    def become(_: Any) -> None:
        os.write(1, b"a line of the server")
        raise SystemExit

    monkeypatch.setattr(connect_server, "become", become)
    with pytest.raises(SystemExit):
        airflow("spark-server", "--folder", str(tmp_path / "server"), "--output", "json")
    shown, _, last = capfd.readouterr().out.rpartition("\n")
    assert json.loads(shown)["address"].startswith("sc://")
    assert last == "a line of the server"


def test_exit_codes_reach_the_shell_from_airflow(
    called: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """3 after a finding, 1 after a refusal, 1 for a missing connection, 130 after Ctrl-C."""
    for arguments, code in (
        (("doctor",), 3),
        (("status", "--output", "json"), 1),
        (("verify", "--pipeline", "shop"), 130),
        (("ledger", "--conn-id", "not-there"), 1),
    ):
        with pytest.raises(SystemExit) as stopped:
            airflow(*arguments)
        assert stopped.value.code == code
    printed = capsys.readouterr()
    assert "LedgerMissing: there is none" in printed.err
    assert "'not-there'" in printed.err
    assert "verify: interrupted\n" in printed.err
    assert [name for name, _, _ in called] == ["doctor", "status", "verify"]


def test_commands_that_are_shown_reach_the_same_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the given connection, ledger and prefix, quoted for a shell."""
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_EU", json.dumps({"conn_type": "kafka", "extra": CONNECTION}))
    given = get_parser().parse_args(["eos", "status", "--conn-id", "kafka_eu", "--ledger-topic", "own"])
    target = airflow_commands._target(given)
    assert abort_command("eos.a&b c", 3, target.command_line) == (
        "airflow eos abort --transactional-id 'eos.a&b c' --epoch 3 --conn-id kafka_eu --ledger-topic own"
    )


@pytest.mark.parametrize("value", ["-team-", "--yes", "-1", "a b", "a=b", "-", "50%", "a\nb"])
def test_commands_that_are_shown_are_read_as_they_were_meant(value: str) -> None:
    """A parser accepts a value that begins with a hyphen only after an equals sign."""
    line = CommandLine.of("python -m airflow_eos", {"--config": value, "--ledger-topic": None})
    for command, wanted in (
        (abort_command(value, 3, line), {"transactional_id": value, "epoch": 3}),
        (line.command("reset-offsets", {"--group": value, "--to": "cursor"}), {"group": value}),
        (line.command("dismiss", {"--key": value, "--routing": value}), {"key": value, "routing": value}),
    ):
        given = vars(plain.parser().parse_args(shlex.split(command)[3:]))
        assert {**given, **wanted, "config": value} == given


def test_a_prefix_does_not_begin_with_a_hyphen() -> None:
    """It is the value of an option in many commands that people type."""
    assert checked_prefix("_my-team") == "_my-team"
    with pytest.raises(ConfigurationError, match="without a hyphen in front"):
        checked_prefix("-team")


@pytest.mark.parametrize("value", ["a b", ".", "x" * 250])
def test_what_is_no_topic_is_wrong_usage(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In every option that takes one, before any request."""
    for command, flag in (
        ("doctor", "--source"),
        ("doctor", "--sink"),
        ("plan", "--topic"),
        ("repair", "--topic"),
        ("reset-offsets", "--topic"),
    ):
        with pytest.raises(SystemExit, match="2"):
            plain.parser().parse_args([command, "--bootstrap-servers", "a:1", flag, value])
        assert f"argument {flag}: {value!r} is not the name of a topic" in capsys.readouterr().err


@pytest.mark.parametrize("servers", [5, 1.5, True, {"a": 1}, [5]])
def test_brokers_that_are_no_text_are_refused(
    servers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of settings may hold any JSON."""
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"bootstrap.servers": servers}))
    file.chmod(0o600)
    assert plain.main(["status", "--config", str(file), "--output", "json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "ConfigurationError"
    assert "client setting 'bootstrap.servers' must be text, such as 'host:9092', got" in error["message"]


def test_a_setting_that_cannot_be_read_is_one_line(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow's own errors, too: a command ends without a traceback."""
    monkeypatch.setenv("AIRFLOW__EOS__REQUIRE_ENCRYPTED_SPARK", "maybe")
    with pytest.raises(SystemExit, match="1"):
        airflow("ledger", "--output", "json")
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["type"], error["docs"]) == ("AirflowConfigException", None)
    assert "maybe" in error["message"]
    assert printed.err.startswith("AirflowConfigException: ")
    assert printed.err.count("\n") == 1
    assert not called


def test_group_is_what_the_provider_info_registers() -> None:
    """Airflow adds the group to its own."""
    (group,) = get_eos_cli_commands()
    assert group.name == "eos"
    assert [subcommand.name for subcommand in group.subcommands] == [command.name for command in COMMANDS]


def the_interval(start, end, timezone=None):
    """Parse like the commands; return seconds since the epoch."""
    interval = commands._whole_interval(Namespace(interval=(start, end), timezone=timezone))
    ends = interval.start, interval.end
    return [moment.timestamp() for moment in ends]


def test_days_of_a_zone_are_as_long_as_they_were_there():
    """The day on which clocks go forward has 23 hours."""
    start, end = the_interval("2026-03-29", "2026-03-30", "Europe/Berlin")

    assert (end - start) / 3600 == 23
    assert start == the_interval("2026-03-28T23:00Z", "2026-03-29T01:00+01:00", "Asia/Tokyo")[0]


@pytest.mark.parametrize(
    ("start", "timezone", "says"),
    [
        ("2026-03-29", None, "has no zone: write 2026-03-29T00:00Z, or give --timezone UTC"),
        ("2026-03-29", "Europe/Atlantis", "--timezone 'Europe/Atlantis' is unknown"),
        ("P1D", "UTC", "is not a day or time"),
        ("yesterday", "UTC", "is not an ISO time"),
        ("now", "UTC", "is not a day or time"),
        ("05:00", "UTC", "is not a day or time"),
        ("2026-11-21T05:00:30", None, "has no zone: write 2026-11-21T05:00:30Z, or give --timezone UTC"),
        ("0001-01-01", "Asia/Tokyo", "is before year 1 or after 9999 in UTC"),
        *(("2026-03-29", zone, f"--timezone {zone!r} is unknown") for zone in ("", "/etc/passwd", "Europe")),
    ],
)
def test_a_time_that_means_nothing_is_refused_by_name(start, timezone, says):
    """Neither the zone nor the day is guessed."""
    with pytest.raises(WrongUsage, match=re.escape(says)):
        the_interval(start, "2026-03-30T00:00Z", timezone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("doctor", "--interval", "2026-03-30T00:00Z", "2026-03-29T00:00Z"),
            "doctor: --interval: the interval [2026-03-30T00:00:00+00:00, 2026-03-29T00:00:00+00:00) is",
        ),
        (
            ("prune", "--before", "0001-01-01T00:00+14:00"),
            "prune: --before '0001-01-01T00:00+14:00' is before",
        ),
        (("prune", "--before", "last year"), "prune: --before 'last year' is not an ISO time"),
        (
            ("doctor", "--interval", "2026-11-01T00:00Z", "9999-12-31T23:59Z"),
            "doctor: --interval: the interval's end 9999-12-31T23:59:00+00:00 and allowed_lateness 0:05:00",
        ),
    ],
)
def test_a_time_that_no_run_can_have_is_wrong_usage(arguments, message, capsys):
    """Before any request to a broker."""
    assert plain.main([*arguments, "--bootstrap-servers", "a:1"]) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    "text", ["2026-01-02", "2026-01-02T00:00Z", "2026-01-02 00:00", "2026-01-02T01:00+01:00"]
)
def test_a_date_to_prune_before_is_utc_unless_it_names_a_zone(text, monkeypatch):
    """Also with the Z that Python 3.10 cannot parse itself."""
    dates = []

    def prune_ledger(target, before, **_):
        dates.append(before)
        raise LedgerMissing("there is none")

    monkeypatch.setattr("airflow_eos.cli.commands.prune_ledger", prune_ledger)
    assert plain.main(["prune", "--before", text, "--bootstrap-servers", "a:1"]) == 1
    assert dates == [dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)]


@pytest.mark.parametrize(("mode", "warns"), [(0o644, True), (0o640, True), (0o600, False)])
def test_a_file_with_secrets_that_others_can_read_is_a_warning(tmp_path, caplog, mode, warns):
    """It has passwords; the command works nevertheless."""
    from airflow_eos.cli.main import _secret_text

    file = tmp_path / "kafka.json"
    file.write_text("{}")
    file.chmod(mode)
    with caplog.at_level("WARNING"):
        assert _secret_text("--config", str(file)) == "{}"
    assert (f"--config {file}: other users of this machine can read this file" in caplog.text) is warns
