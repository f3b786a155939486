"""Makes the pictures of ``docs/guarantees``: ``python -m tests.guarantees.pictures [NAME ...]``.

Each picture is a real run on real brokers, recorded while it happens; nothing is drawn by hand. Running it
again gives other milliseconds and the same story.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from typing_extensions import Self

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import EosError
from airflow_eos.ledger import keys
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.faults import KafkaProxy
from tests.guarantees.conftest import QUICK_FAILOVER
from tests.guarantees.driver import LocalDriver
from tests.guarantees.experiment import Experiment
from tests.guarantees.offset_layout import layout_of, write_abort_layout, write_commit_layout
from tests.guarantees.timeline import COLOURS, Lane, draw, draw_log, wrapped

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "guarantees" / "images"


class Recorder:
    """Readers of both isolation levels and the coordinator's view, over time; a context manager."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._stop = threading.Event()
        self._stack = ExitStack()
        self._counts: dict[str, list[tuple[float, int]]] = {}
        self._transaction: list[tuple[str, float]] = []
        self.began = 0.0

    def __enter__(self) -> Self:
        for isolation in ("read_uncommitted", "read_committed"):
            self._counts[isolation] = []
            self._start(self._read, isolation)
        self._start(self._ask)
        time.sleep(1.0)  # consumers are connected before the story begins
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._stack.close()

    def _start(self, body: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 30)

    @property
    def now(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self.began

    def states(self, driver: LocalDriver) -> list[tuple[str, float]]:
        """Return a driver's states on this clock."""
        return [(state, moment - self.began) for state, moment in driver.times]

    def readers(self) -> list[Lane]:
        """Return a lane for each isolation level."""
        return [
            Lane(name, steps=[(max(t - self.began, 0.0), n) for t, n in counts])
            for name, counts in self._counts.items()
        ]

    def coordinator(self, end: float) -> Lane:
        """Return what DescribeTransactions answered."""
        moments = [(name, max(t - self.began, 0.0)) for name, t in self._transaction]
        lane = Lane("coordinator")
        for (name, begin), (_, until) in zip(moments, [*moments[1:], ("", end)], strict=True):
            lane.spans.append((begin, until, name, COLOURS.get(name.split(" ")[0], "#dddddd")))
        lane.notes = wrapped([f"{name} {begin:.3f}" for name, begin in moments])
        return lane

    def _read(self, isolation: str) -> None:
        consumer = Consumer(
            {
                **self._experiment.kafka.client_config(),
                "group.id": "picture",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        sink = self._experiment.sink
        consumer.assign([ClientPartition(sink, p, 0) for p in range(self._experiment.partitions)])
        seen = 0
        while not self._stop.is_set():
            messages = consumer.consume(1000, timeout=0.01)
            fresh = sum(1 for message in messages if message.error() is None)
            if fresh:
                seen += fresh
                self._counts[isolation].append((time.monotonic(), seen))
        consumer.close()

    def _ask(self) -> None:
        spec = self._experiment.spec
        name = keys.transactional_id(spec)
        with ControlPlane(spec) as control:
            while not self._stop.is_set():
                try:
                    transaction = control.cluster.describe_transaction(name)
                except EosError:
                    continue
                text = (
                    "" if transaction is None else f"{transaction.state.value} e{transaction.producer_epoch}"
                )
                if text and (not self._transaction or self._transaction[-1][0] != text):
                    self._transaction.append((text, time.monotonic()))
                time.sleep(0.005)


def _settled(record: Recorder) -> float:
    time.sleep(0.4)
    return round(record.now, 2)


def delivery() -> str:
    """S3: killed after it wrote, tried again."""
    with EmbeddedKafka() as kafka:
        experiment = _warm(kafka)
        experiment.feed(30)
        with Recorder(experiment) as record:
            dead = experiment.driver(stop_at=State.WRITTEN).wait_for(State.WRITTEN)
            time.sleep(0.3)
            dead.kill()
            killed = record.now
            time.sleep(0.2)
            again = experiment.driver(try_number=2)
            again.result()
            end = _settled(record)
        first = Lane.of_states("try 1", record.states(dead), killed)
        first.marks.append((killed, "SIGKILL"))
        second = Lane.of_states("try 2", record.states(again), end)
        lanes = [first, second, record.coordinator(end), *record.readers()]
        return draw("S3: killed between output and offsets, then tried again", lanes, end)


def producer() -> str:
    """P2: the acknowledgement of a batch is lost."""
    with EmbeddedKafka() as kafka, KafkaProxy(kafka.bootstrap_servers) as proxy:
        experiment = _warm(kafka)
        experiment.feed(30)
        with Recorder(experiment) as record:
            lost = proxy.lose_response("Produce", containing=experiment.sink)
            driver = experiment.driver(kafka=proxy.client_config(kafka.client_config()))
            lost.wait()
            when = record.now
            driver.result()
            end = _settled(record)
        run = Lane.of_states("run", record.states(driver), end)
        run.marks.append((when, "answer of Produce lost"))
        lanes = [run, record.coordinator(end), *record.readers()]
        return draw("P2: appended, the acknowledgement is lost, sent again, recognised", lanes, end)


def transactions() -> str:
    """T5: a zombie."""
    with EmbeddedKafka() as kafka:
        experiment = _warm(kafka)
        experiment.feed(30)
        with Recorder(experiment) as record:
            zombie = experiment.driver("r1", stop_at=State.WRITTEN).wait_for(State.WRITTEN)
            time.sleep(0.2)
            zombie.pause()
            stopped = record.now
            live = experiment.driver("r2")
            live.result()
            time.sleep(0.2)
            woken = record.now
            zombie.resume()
            zombie.release()
            try:
                zombie.result()
            except EosError as error:
                ended, name = record.now, type(error).__name__
            end = _settled(record)
        states = record.states(zombie)
        before = [step for step in states if step[1] < stopped]
        first = Lane.of_states("zombie", before, stopped)
        first.spans.append((stopped, woken, "stopped", COLOURS["stopped"]))
        after = Lane.of_states("", [step for step in states if step[1] >= stopped], ended)
        first.spans += after.spans
        first.notes = Lane.of_states("", states, ended).notes
        first.marks += [(stopped, "SIGSTOP"), (woken, "SIGCONT"), (ended, name)]
        second = Lane.of_states("next run", record.states(live), end)
        lanes = [first, second, record.coordinator(end), *record.readers()]
        return draw("T5: stopped after its send, replaced, woken: fenced", lanes, end)


def consumer_offsets() -> str:
    """C4: both layouts, read back from the log."""
    with EmbeddedKafka() as kafka:
        rows = []
        for name, write in (("committed", write_commit_layout), ("aborted", write_abort_layout)):
            experiment = Experiment(kafka, partitions=1)
            write(kafka.client_config(), experiment.source)
            cells = layout_of(kafka.client_config(), experiment.source)
            record = experiment.run()
            (span,) = record.ranges
            note = (
                f"range [{span.start}, {span.end}): {span.span} offsets, {record.records_read} records read; "
                f"committed offset {experiment.committed()[0]}"
            )
            rows.append((name, cells, note))
        return draw_log("C4: what stands at each offset", rows)


def availability() -> str:
    """A1: one broker after the other."""
    with EmbeddedKafka(brokers=3, broker_config=QUICK_FAILOVER) as kafka:
        experiment = _warm(kafka)
        experiment.feed(30)
        kafka.wait_in_sync()
        stops = (State.PLANNED, State.OPEN, State.WRITTEN)
        lives = [Lane(f"broker {broker.node_id}") for broker in kafka.brokers]
        with Recorder(experiment) as record:
            driver = experiment.driver(stop_at=stops)
            for broker, lane, state in zip(kafka.brokers, lives, stops, strict=True):
                driver.wait_for(state)
                broker.kill()
                down = record.now
                driver.release()
                time.sleep(1.0)
                broker.start()
                up = record.now
                kafka.wait_in_sync()
                lane.spans += [(0.0, down, "up", COLOURS["up"]), (down, up, "down", COLOURS["down"])]
                lane.spans.append((up, -1.0, "up", COLOURS["up"]))
            driver.result()
            end = _settled(record)
        for lane in lives:
            lane.spans = [(a, end if b < 0 else b, text, colour) for a, b, text, colour in lane.spans]
        run = Lane.of_states("run", record.states(driver), end)
        lanes = [run, *lives, record.coordinator(end), *record.readers()]
        return draw("A1: each broker killed in turn, two of three always there", lanes, end)


def _warm(kafka: EmbeddedKafka) -> Experiment:
    """Return an experiment whose ledger and processes exist, so that the picture shows only the story."""
    experiment = Experiment(kafka)
    experiment.driver("warm-up").result()
    return experiment


PICTURES = (delivery, producer, transactions, consumer_offsets, availability)


def main(names: list[str]) -> int:
    """Make the pictures named, or all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        if not names or picture.__name__ in names:
            target = IMAGES / f"{picture.__name__.replace('_', '-')}.svg"
            target.write_text(picture())
            print(target.relative_to(IMAGES.parents[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
