"""The parser of ``airflow eos``, without Airflow's other commands."""

from __future__ import annotations

import argparse

from airflow.cli.cli_parser import AirflowHelpFormatter, DefaultHelpParser, _add_command

from airflow_eos.cli.airflow_commands import get_eos_cli_commands


def get_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser: argparse.ArgumentParser = DefaultHelpParser(prog="airflow", formatter_class=AirflowHelpFormatter)
    subparsers = parser.add_subparsers(dest="subcommand", metavar="GROUP_OR_COMMAND")
    for group in get_eos_cli_commands():
        _add_command(subparsers, group)
    return parser
