"""``airflow eos``: the commands in the form that Airflow registers, through the provider info."""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_eos.cli.definition import COMMANDS, EXIT_CODES, Command, Option, option
from airflow_eos.cli.outcome import Gauge
from airflow_eos.model.spec import Deployment

_LONGEST_TAG = 200  # Airflow drops a metric of more than 250 characters with its tag
_INVALID_IN_TAG = re.compile(r"[^A-Za-z0-9_./-]")

_CONN_ID = option("--conn-id", "connection of type kafka, default: kafka_default", default="kafka_default")


def get_eos_cli_commands() -> list[GroupCommand]:
    """Return the group ``eos``; Airflow calls it when its command line starts."""
    codes = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    return [
        GroupCommand(
            name="eos",
            help="Exactly-once runs on Kafka: ledger, cursors, checks",
            description="Look after ledgers, cursors and runs of airflow-eos.",
            epilog=f"Exit codes: {codes}.",
            subcommands=tuple(
                ActionCommand(
                    name=command.name,
                    help=command.help,
                    description=command.description,
                    func=functools.partial(_carry_out, command),
                    args=tuple(_argument(option) for option in _options(command)),
                )
                for command in COMMANDS
            ),
        )
    ]


def _options(command: Command) -> tuple[Option, ...]:
    return (_CONN_ID, *command.all_options) if command.cluster else command.all_options


def _argument(option: Option) -> Any:
    # Airflow's help interprets [...] as Rich markup.
    return Arg((option.flag,), help=option.help.replace("[", r"\["), **option.settings)


def _carry_out(command: Command, options: argparse.Namespace) -> None:
    from airflow_eos.cli.execution import carry_out

    code = carry_out(command, options, functools.partial(_prepared, command))
    if code:
        sys.exit(code)


def _prepared(command: Command, options: argparse.Namespace) -> Deployment | None:
    """Add settings of Airflow's configuration to the options, and return the target."""
    from airflow_eos import settings
    from airflow_eos.hooks.table_connections import with_connection

    options.encrypted_spark = settings.require_encrypted_spark()
    options.class_data_folder = settings.class_data_folder()
    options.spark_server_folder = settings.spark_server_folder()
    options.send_gauges = _send_gauges
    options.connected = with_connection
    return _target(options) if command.cluster else None


def _send_gauges(gauges: Iterable[Gauge]) -> None:
    """Send metrics like tasks, by section [metrics]; the OpenTelemetry client sends them at exit."""
    from airflow_eos.compat import conf, initialize_stats, stats

    initialize_stats()
    clients = ("statsd_on", "statsd_datadog_enabled")
    by_statsd = any(conf.getboolean("metrics", name, fallback=False) for name in clients)
    for name, value, tags in gauges:
        valid = {tag: _valid_in_statsd(text) for tag, text in tags.items()} if by_statsd else dict(tags)
        stats.gauge(name, value, tags=valid)


def _valid_in_statsd(text: str) -> str:
    """Return a tag value that is valid in StatsD: Airflow drops the metric or tag of any other value.

    A digest distinguishes values that would be equal after the replacement of characters.
    """
    kept = _INVALID_IN_TAG.sub("_", text)[:_LONGEST_TAG]
    if kept == text:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{kept}-{digest[:8]}"


def _target(options: argparse.Namespace) -> Deployment:
    from airflow_eos import settings
    from airflow_eos.exceptions import ConfigurationError
    from airflow_eos.hooks.kafka_eos import KafkaEosHook
    from airflow_eos.model.command_line import CommandLine

    try:
        kafka = KafkaEosHook(options.conn_id).get_config()
    except ConfigurationError:
        raise
    except Exception as error:  # Airflow's own, if there is no such connection
        raise ConfigurationError(f"connection {options.conn_id!r}: {error}") from error
    ledger = settings.default_ledger()
    return Deployment(
        kafka=kafka,
        ledger=replace(ledger, topic=options.ledger_topic or ledger.topic),
        prefix=options.prefix or settings.default_prefix(),
        command_line=CommandLine.of(
            "airflow eos",
            {
                "--conn-id": options.conn_id,
                "--ledger-topic": options.ledger_topic,
                "--prefix": options.prefix,
            },
        ),
    )
