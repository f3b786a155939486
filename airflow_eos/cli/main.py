"""``python -m airflow_eos``: the commands without Airflow."""

from __future__ import annotations

import argparse
import json
import logging
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_eos.cli.definition import COMMANDS, EXIT_CODES, text
from airflow_eos.cli.execution import carry_out
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment, LedgerSettings
from airflow_eos.printable import printable

log = logging.getLogger(__name__)

_PROGRAM = "python -m airflow_eos"
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; the documentation uses it, too."""
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    root = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Look after ledgers, cursors and runs of airflow-eos, without Airflow.",
        epilog=f"Exit codes: {codes}.",
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = commands.add_parser(command.name, help=command.help, description=command.description)
        if command.cluster:
            _add_connection(subparser)
        # Values that only Airflow's configuration provides.
        subparser.set_defaults(
            encrypted_spark=False,
            class_data_folder=None,
            spark_server_folder=None,
            send_gauges=None,
            connected=lambda table: table,  # pyiceberg's own configuration names the catalog
        )
        for option in command.all_options:
            subparser.add_argument(option.flag, help=option.help, **option.settings)
    return root


def _add_connection(subparser: argparse.ArgumentParser) -> None:
    exclusive = subparser.add_mutually_exclusive_group(required=True)
    exclusive.add_argument(
        "--bootstrap-servers", type=text, metavar="HOST:PORT", help="brokers without authentication"
    )
    exclusive.add_argument(
        "--config",
        type=text,
        metavar="FILE",
        help="JSON file with client settings in librdkafka's names, as in a Kafka connection's extra; "
        "- reads standard input. Keeps passwords off the command line",
    )
    subparser.add_argument(
        "--ledger-key-file",
        type=text,
        metavar="FILE",
        help="file with the ledger's key, where it has one: what [eos] ledger_key is in Airflow",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = parser().parse_args(arguments)
    command = next(candidate for candidate in COMMANDS if candidate.name == options.command)
    return carry_out(command, options, _target if command.cluster else lambda _: None)


def _target(options: argparse.Namespace) -> Deployment:
    key_file = options.ledger_key_file
    given = {
        "--bootstrap-servers": options.bootstrap_servers,
        "--config": options.config,
        "--ledger-key-file": key_file,
        "--ledger-topic": options.ledger_topic,
        "--prefix": options.prefix,
    }
    return Deployment(
        kafka=_kafka(options),
        ledger=LedgerSettings(
            topic=options.ledger_topic or LedgerSettings().topic,
            key=_secret_text("--ledger-key-file", key_file).strip() if key_file else "",
        ),
        prefix=options.prefix or DEFAULT_PREFIX,
        command_line=CommandLine.of(_PROGRAM, given),
    )


def _secret_text(option: str, name: str) -> str:
    """Read a file of secrets, UTF-8; warns if other users of this machine can read it, too."""
    path = Path(name)
    try:
        text, mode = path.read_text("utf-8"), path.stat().st_mode
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{option} {name}: {error}") from error
    if stat.S_ISREG(mode) and mode & _OTHERS_READ:
        log.warning(
            "%s %s: other users of this machine can read this file (mode %03o): chmod 600",
            option,
            printable(name),
            stat.S_IMODE(mode),
        )
    return text


def _kafka(options: argparse.Namespace) -> dict[str, Any]:
    if options.bootstrap_servers:
        return {"bootstrap.servers": options.bootstrap_servers}
    if options.config == "-" and sys.stdin is None:
        raise ConfigurationError("--config -: standard input is closed")
    try:
        text = sys.stdin.read() if options.config == "-" else _secret_text("--config", options.config)
        settings = json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--config {options.config}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f"--config {options.config} must hold one JSON object")
    return settings
