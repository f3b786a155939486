"""Run the flights Dag in a composition of containers and count: ``python -m demo.composed [--records N]``.

``docker/ctl flights`` starts it inside the composition. Its last line is that of ``make demo``, from the same
comparison; nothing is killed here. The exit code is 0 only if every record of the topic ``flights``, also of
earlier calls, is in the output exactly once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_eos_testing import read_topic
from airflow_eos_testing.airflow_api import AirflowApi, sign_in
from demo.stream import load_flights
from demo.tally import CLASSIFIED, DEAD_LETTERS, compare
from spark_apps.flights_input import publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_eos_testing import Record
    from spark_apps.flights_input import Message

DAG, TASK, SOURCE = "flights", "classify", "flights"
PARTITIONS = 4
RECORDS = 100_000

_TIMEOUT = 900.0
_POLL = 2.0
_EXISTS = 36  # Kafka's TOPIC_ALREADY_EXISTS
# The flights carry timestamps of 2001: the default retention would delete them.
_TOPIC_CONFIG = {"retention.ms": "-1"}


def main() -> int:
    """Publish, trigger, wait, compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="demo.composed", description="Run the flights Dag and count.")
    parser.add_argument(
        "--records", type=int, default=RECORDS, help="flights to publish (default %(default)s)"
    )
    records = parser.parse_args().records
    kafka = {"bootstrap.servers": os.environ["EOS_KAFKA"]}
    airflow = sign_in(os.environ["EOS_AIRFLOW"], "admin", os.environ["AIRFLOW_ADMIN_PASSWORD"])
    create_topics(kafka, [SOURCE, CLASSIFIED, DEAD_LETTERS])
    flights = after(load_flights(None, records), read_topic(kafka, SOURCE))
    publish({**kafka, "log_level": 3}, SOURCE, flights)
    _say(f"{len(flights):,} flights published to topic {SOURCE!r}, one in a hundred malformed")
    _wait_for_dag(airflow)
    airflow.unpause(DAG)
    run = f"composed-{int(time.time())}"
    airflow.call("POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": run, "logical_date": None})
    state = _wait_for_run(airflow, run)
    task = airflow.task(DAG, run, TASK)
    _say(f"Dag run {run}: {state}; its task ran {task['duration'] or 0:.1f} s on {task['hostname']}")
    if state != "success":
        return 1
    outputs = [record for topic in (CLASSIFIED, DEAD_LETTERS) for record in read_topic(kafka, topic)]
    tally = compare(read_topic(kafka, SOURCE), outputs)
    if tally.wrong:
        _say(tally.complaints())
    _say(tally.line)
    return 0 if tally.exact else 1


def after(flights: Sequence[Message], records: Iterable[Record]) -> list[Message]:
    """Shift the flights' timestamps past the existing records': a timestamp identifies its flight."""
    last = max((record.timestamp for record in records), default=None)
    if last is None or not flights:
        return list(flights)
    shift = last + 1 - min(flight.timestamp for flight in flights)
    return [replace(flight, timestamp=flight.timestamp + shift) for flight in flights]


def create_topics(kafka: dict[str, str], names: Sequence[str]) -> None:
    """Create the missing topics, with the brokers' default replication factor."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin: Any = AdminClient(kafka)
    # -1 is the brokers' default.
    topics = [NewTopic(name, PARTITIONS, replication_factor=-1, config=_TOPIC_CONFIG) for name in names]
    for future in admin.create_topics(topics, operation_timeout=60).values():
        try:
            future.result()
        except KafkaException as error:  # noqa: PERF203 - three topics
            if error.args[0].code() != _EXISTS:
                raise


def _wait_for_dag(airflow: AirflowApi) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not airflow.has_dag(DAG):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Dag {DAG!r} is not there after {_TIMEOUT:.0f} s: {airflow.import_errors()}")
        time.sleep(_POLL)


def _wait_for_run(airflow: AirflowApi, run: str) -> str:
    deadline = time.monotonic() + _TIMEOUT
    while (state := str(airflow.run(DAG, run)["state"])) not in ("success", "failed"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Dag run {run} is {state!r} after {_TIMEOUT:.0f} s")
        time.sleep(_POLL)
    return state


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
