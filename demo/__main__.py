"""Run the demo: ``python -m demo [--sink topics|iceberg] [--input flights.json] [--records N] [--hold]``.

Starts a real Kafka broker and a real Airflow, and stops both in any case. The exit code is 0 only if
every record of the input is in the output exactly once.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.compat import AIRFLOW_VERSION
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow import AirflowStandalone, kafka_connection
from demo.broker_view import BrokerView
from demo.chapters import RUN, SOURCE
from demo.lake import CATALOG, Lake
from demo.screen import Screen
from demo.story import CLIENT_ID, OUTPUTS, Story
from demo.stream import load_flights
from demo.table_story import TableStory
from spark_apps.flights_input import publish

if TYPE_CHECKING:
    from typing import NoReturn

    from demo.chapters import Chapters

ROOT = Path(__file__).resolve().parent.parent
PAGES_ROUTE = "exactly-once"
PARTITIONS = 4
RECORDS = 100_000
INTERRUPTED = 130

# The flights carry timestamps of 2001: the default retention would delete them while the demo runs.
_INPUT_CONFIG = {"retention.ms": "-1"}
# Small batches, so that even a small input is written in many steps and can be interrupted half way.
_OUTPUT_CONFIG = {**_INPUT_CONFIG, "max.message.bytes": "65536"}
# A scheduled Dag run, at the full hour, would consume the records of the demo's own run.
_AIRFLOW_ENV = {
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    "AIRFLOW__EOS__UI_KAFKA_CONFIG_ID": "kafka_default",
}
_LAKE = ROOT / ".cache" / "demo-lake"


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="Kill a run half way and count.")
    parser.add_argument(
        "--sink", choices=("topics", "iceberg"), default="topics", help="where the output goes"
    )
    parser.add_argument("--input", type=Path, help="JSON array of flights; default: a generated stream")
    parser.add_argument("--records", type=int, default=RECORDS, help="length of the generated stream")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of Kafka and Airflow")
    parser.add_argument("--hold", action="store_true", help="leave Airflow open at the end, until Ctrl-C")
    options = parser.parse_args()
    if options.input is not None and not options.input.is_file():
        parser.error(f"--input {options.input}: no such file")
    if AIRFLOW_VERSION < (3, 2):
        parser.error("the example Dags import timetables that Airflow has from 3.2 on")
    logging.basicConfig(level=logging.WARNING, format="           %(message)s")
    signal.signal(signal.SIGTERM, _end)
    screen = Screen()
    try:
        return _demo(screen, options)
    except KeyboardInterrupt:
        screen.event("interrupted; everything it started is stopped")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - report any failure in one place
        screen.event(f"the demo FAILED: {type(error).__name__}: {error}")
        return 1


def _demo(screen: Screen, options: argparse.Namespace) -> int:
    path = options.input
    with ExitStack() as stack:
        with screen.waiting("starting a Kafka broker"):
            kafka = stack.enter_context(EmbeddedKafka(keep=options.keep))
        kafka.create_topic(SOURCE, PARTITIONS, config=_INPUT_CONFIG)
        for topic in OUTPUTS:
            kafka.create_topic(topic, PARTITIONS, config=_OUTPUT_CONFIG)
        flights = load_flights(path, options.records)
        publish({**kafka.client_config(), "log_level": 3}, SOURCE, flights)
        origin = f"from {path}" if path else "generated, one in a hundred malformed"
        screen.event(f"{len(flights):,} flights published to topic {SOURCE!r}, {origin}")
        connections = {"kafka_default": kafka_connection(kafka.bootstrap_servers, **{"client.id": CLIENT_ID})}
        lake = None
        if options.sink == "iceberg":
            lake = Lake(_LAKE)
            screen.event(f"a new table in an SQLite catalog: {_LAKE}")
            connections[CATALOG] = {"conn_type": "iceberg", "extra": lake.properties}
        airflow = AirflowStandalone(
            ROOT / "dags", connections=connections, env=_AIRFLOW_ENV, keep=options.keep
        )
        with screen.waiting("starting Airflow: scheduler, Dag processor, API server, triggerer"):
            stack.enter_context(airflow)
        view = BrokerView(kafka.bootstrap_servers)
        stack.callback(view.close)
        story = (
            Story(screen, kafka, airflow, view, flights)
            if lake is None
            else TableStory(screen, kafka, airflow, view, flights, lake)
        )
        try:
            tally = story.tell()
        except Exception:
            _show_logs(screen, kafka, airflow, story)
            raise
        if options.hold:
            _hold(screen, airflow)
    if tally.wrong:
        screen.detail(tally.complaints())
    sys.stdout.write(f"\n{tally.line}\n")
    return 0 if tally.exact else 1


def _hold(screen: Screen, airflow: AirflowStandalone) -> None:
    """Keep everything running until Ctrl-C."""
    screen.event(f"the runs, offset by offset: {airflow.api.base_url}/plugin/{PAGES_ROUTE}")
    screen.event("Ctrl-C ends it")
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)


def _show_logs(screen: Screen, kafka: EmbeddedKafka, airflow: AirflowStandalone, story: Chapters) -> None:
    """Show the ends of all logs before their folders are removed."""
    with suppress(Exception):  # the failure to explain may be Airflow's own
        screen.detail(kafka.logs(10))
        screen.detail(airflow.logs(20))
        for task, number in product((*story.before, story.task), range(1, 10)):
            lines = [_plain(line) for line in airflow.task_log(story.dag, RUN, task, number).splitlines()]
            if lines:
                screen.detail("\n".join([f"--- end of the log of {task}, try {number} ---", *lines[-40:]]))


def _plain(line: str) -> str:
    """Return the readable part of a line of a task's JSON log."""
    try:
        entry = json.loads(line)
        details = "; ".join(str(detail["exc_value"]) for detail in entry.get("error_detail") or ())
        return f"{entry['timestamp'][11:19]} {entry['level']}: {entry['event']} {details}".rstrip()
    except (ValueError, KeyError, TypeError):
        return line


def _end(_signum: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
