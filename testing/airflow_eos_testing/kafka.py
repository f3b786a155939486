"""Run an embedded Kafka in the foreground: ``python -m airflow_eos_testing.kafka --topic orders:4``.

The first line of standard output lists the bootstrap servers, for scripts to read. Ctrl-C or SIGTERM ends it
and removes everything; the exit code is then 0.
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from airflow_eos.exceptions import EosError
from airflow_eos_testing.cluster import DEFAULT_VERSION, EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL = 0.2


class _Stop(BaseException):
    """SIGINT or SIGTERM arrived."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal arrives or a broker ends by itself; return the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _stop)
    try:
        kafka = EmbeddedKafka(
            options.brokers,
            options.version,
            broker_config=dict(options.config),
            port=options.port,
            keep=options.keep,
        )
        with kafka:
            _run(kafka, options.topic)
    except _Stop:
        return 0
    except EosError as error:
        print(error, file=sys.stderr)
        return 1
    return 1


def _run(kafka: EmbeddedKafka, topics: Sequence[tuple[str, int]]) -> None:
    for name, partitions in topics:
        kafka.create_topic(name, partitions)
    print(kafka.bootstrap_servers, flush=True)
    print(
        f"Kafka {kafka.version} is running; Ctrl-C ends it and removes its data", file=sys.stderr, flush=True
    )
    while all(broker.is_alive for broker in kafka.brokers):
        time.sleep(_POLL)
    print(f"A broker ended by itself.\n{kafka.logs()}", file=sys.stderr)


def _stop(signum: int, frame: object) -> NoReturn:
    # Ignore further signals: a second Ctrl-C would interrupt the removal.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise _Stop(signum, frame)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_eos_testing.kafka", description=__doc__)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--version", default=DEFAULT_VERSION, help="Kafka version (default %(default)s)")
    parser.add_argument("--port", type=int, help="of the first broker (default: a free one)")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="created at the start; repeatable",
    )
    parser.add_argument(
        "--config",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="broker setting, such as log.retention.ms=-1 before history is loaded; repeatable",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data at the end")
    return parser


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name or (partitions and not partitions.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return name, int(partitions or 1)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
