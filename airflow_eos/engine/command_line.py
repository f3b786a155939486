"""``python -m airflow_eos init|status``: make the ledger, ask the ledger.

Exit codes: 0 done, 1 the cluster or the ledger says no (one line on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_eos.exceptions import ConfigurationError, EosError
from airflow_eos.model.spec import LedgerSettings


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; also what the documentation shows."""
    common = argparse.ArgumentParser(add_help=False)
    where = common.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="brokers without authentication")
    where.add_argument(
        "--config",
        metavar="FILE",
        help="JSON file with client settings in librdkafka's names, as in a Kafka connection's extra; "
        "- reads standard input. Keeps passwords off the command line",
    )
    default = "default: %(default)s"
    common.add_argument("--ledger-topic", default=LedgerSettings().topic, help=default)
    common.add_argument("--prefix", default="airflow-eos", help=f"of transactional ids, {default}")
    root = argparse.ArgumentParser(prog="python -m airflow_eos", description=__doc__.splitlines()[0])
    commands = root.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", parents=[common], help="create the ledger topic and fix its identity")
    init.add_argument("--partitions", type=int, default=LedgerSettings().partitions)
    init.add_argument("--replication-factor", type=int, help="default: the brokers' default")
    status = commands.add_parser("status", parents=[common], help="show the ledger, cursors and runs")
    status.add_argument("--group", action="append", default=[], help="a consumer group's cursor; repeatable")
    status.add_argument(
        "--run", action="append", default=[], metavar="PIPELINE/RUN_ID", help="a run's record; repeatable"
    )
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; print JSON; return the exit code."""
    options = parser().parse_args(arguments)
    try:
        print(json.dumps(_perform(options), indent=2))  # noqa: T201 - a command prints
    except EosError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _perform(options: argparse.Namespace) -> dict[str, Any]:
    from airflow_eos.engine.ledger import create_ledger, ledger_status

    kafka = _kafka(options)
    if options.command == "init":
        settings = LedgerSettings(
            topic=options.ledger_topic,
            partitions=options.partitions,
            replication_factor=options.replication_factor,
        )
        topic_id, partitions = create_ledger(kafka, settings, options.prefix)
        return {"ledger": {"topic": settings.topic, "topic_id": topic_id, "partitions": partitions}}
    return ledger_status(
        kafka,
        LedgerSettings(topic=options.ledger_topic),
        groups=options.group,
        runs=[_run(text) for text in options.run],
        prefix=options.prefix,
    )


def _run(text: str) -> tuple[str, str]:
    pipeline, slash, run_id = text.partition("/")
    if not (pipeline and slash and run_id):
        raise ConfigurationError(f"--run {text!r} must be PIPELINE/RUN_ID, for example demo/2026-11-21T05")
    return pipeline, run_id


def _kafka(options: argparse.Namespace) -> dict[str, Any]:
    if options.bootstrap_servers:
        return {"bootstrap.servers": options.bootstrap_servers}
    try:
        text = sys.stdin.read() if options.config == "-" else Path(options.config).read_text("utf-8")
        settings = json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--config {options.config}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f"--config {options.config} must hold one JSON object")
    return settings
