"""Chapters that both forms of the demo share: the scheduler's own retry, the ledger's record, a clear."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from airflow_eos.ledger.keys import is_run_record
from airflow_eos_testing import read_topic

if TYPE_CHECKING:
    from airflow_eos_testing import EmbeddedKafka
    from airflow_eos_testing.airflow import AirflowStandalone
    from demo.broker_view import BrokerView, Transaction
    from demo.screen import Screen

RUN = "demo"
SOURCE = "flights"
LEDGER = "airflow-eos-ledger"
POLL = 0.3
ENDED = ("success", "failed", "upstream_failed", "skipped", "up_for_retry")
_SECOND_TRY_TIMEOUT = 300.0


class DemoError(Exception):
    """The demo did not go as expected."""


class Chapters:
    """One run of the demo. It never interferes with the run itself: it watches, kills, clears and counts.

    :cvar dag: the Dag to run.
    :cvar task: its task to kill.
    :cvar before: its tasks before that one.
    :ivar transactional_id: transactional id of the run.
    """

    dag: str
    task: str
    before: tuple[str, ...] = ()
    transactional_id: str

    def __init__(
        self, screen: Screen, kafka: EmbeddedKafka, airflow: AirflowStandalone, view: BrokerView
    ) -> None:
        self.screen = screen
        self.kafka = kafka
        self.airflow = airflow
        self.view = view

    def seen(self) -> Any:
        """Return the readers' current counts of the output; equal, and of equal text, if nothing changed."""
        raise NotImplementedError

    def show_step(self, now: Transaction) -> None:
        """Show that the retry's transaction has reached its next state."""
        self.screen.event(str(now))
        self.screen.detail(str(self.seen()))

    def watch_second_try(self, footnote: str = "") -> None:
        """Watch Airflow's own retry fence the dead try and commit."""
        screen = self.screen
        screen.title("Second try: the scheduler's own retry")
        shown = _phase(self.transaction())
        deadline = time.monotonic() + _SECOND_TRY_TIMEOUT
        with screen.waiting("waiting for the scheduler to notice and retry"):
            while True:
                now = self.transaction()
                if now is not None and _phase(now) != shown:
                    shown = _phase(now)
                    self.show_step(now)
                task = self.task_now()
                if task["try_number"] > 1 and task["state"] in ENDED:
                    break
                if task["state"] == "failed" or time.monotonic() > deadline:
                    raise DemoError(f"the second try did not commit: task is {task['state']!r}")
                time.sleep(POLL)
        if task["state"] != "success":
            raise DemoError(f"try {task['try_number']} ended as {task['state']!r}, not as success")
        screen.event(f"try {task['try_number']} succeeded")
        screen.detail(f"{self.seen()}{footnote}")

    def show_ledger(self) -> None:
        """Print the run record."""
        (record,) = self.run_records()
        self.screen.title("The ledger's record of the run, committed with the consumed offsets")
        producer = record["producer"]
        rows = {
            "run": record["run_key"],
            "try": f"{record['try_number']} (clears: {record['clear_number']})",
            "producer": f"id {producer['producer_id']}, epoch {producer['producer_epoch']}",
            "read": f"{sum(record['records_read'].values()):,} records: "
            + ", ".join(f"{t}-{p} [{start}, {end})" for t, p, start, end in record["ranges"]),
            "written": self.written(record),
            "states": ", ".join(f"{state} {seconds:.1f} s" for state, seconds in record["trace"]),
        }
        for name, text in rows.items():
            self.screen.detail(f"{name:<9} {text}")

    def written(self, record: dict[str, Any]) -> str:
        """Return the ledger record's description of the output."""
        raise NotImplementedError

    def clear(self) -> None:
        """Clear the task, and show that the ledger answers instead of a third run."""
        screen = self.screen
        screen.title("Cleared and run again: answered by the ledger")
        before, seen = self.transaction(), self.seen()
        # A task that is cleared while the scheduler ends the run would never run.
        self.airflow.wait_for_run(self.dag, RUN)
        self.airflow.clear(self.dag, RUN, [self.task])
        with screen.waiting("the task is cleared; the scheduler runs it again"):
            task = self.airflow.wait_for_task(self.dag, RUN, self.task, ["success", "failed"], try_number=3)
        after, now = self.transaction(), self.seen()
        summary = self.airflow.xcom(self.dag, RUN, self.task)
        screen.event(
            f"try {task['try_number']}: {task['state']} after {task['duration']:.1f} s, "
            f"answered from the ledger: {'yes' if summary['found'] else 'no'}"
        )
        screen.detail(f"{now}\nits {after}")
        if task["state"] != "success" or not summary["found"] or (before, seen) != (after, now):
            raise DemoError("the cleared task should have been answered by the ledger and changed nothing")
        if len(self.run_records()) != 1:
            raise DemoError("the cleared task wrote a second run record")

    # -- observing ----------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL the task with its descendants, after pausing the Dag: the retry must not start yet."""
        self.airflow.api.pause(self.dag)
        killed = self.airflow.kill_task(self.dag, RUN, self.task, tree=True)
        self.screen.event(
            f"SIGKILL to the task: {len(killed)} processes (driver, Spark's JVM, Python workers)"
        )

    def task_now(self) -> dict[str, Any]:
        """Return the task instance."""
        return dict(self.airflow.task(self.dag, RUN, self.task))

    def transaction(self) -> Transaction | None:
        """Return the run's transaction as the broker describes it."""
        return self.view.transaction(self.transactional_id)

    def run_records(self) -> list[dict[str, Any]]:
        """Read the ledger as any consumer can: return every run record that was ever committed."""
        records = read_topic(self.kafka.client_config(), LEDGER)
        return [json.loads(r.value) for r in records if r.value and is_run_record((r.key or b"").decode())]


def _phase(transaction: Transaction | None) -> tuple[str, int] | None:
    return None if transaction is None else (transaction.state, transaction.producer_epoch)
