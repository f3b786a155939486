"""The chapters of the demo. Nothing in here touches the run: it watches, kills, clears and counts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.ledger.keys import cursor_transactional_id, is_run_record
from airflow_eos.model.spec import DEFAULT_PREFIX
from airflow_eos_testing import count_records, read_topic
from demo.tally import CLASSIFIED, DEAD_LETTERS, Tally, compare

if TYPE_CHECKING:
    from airflow_eos_testing import EmbeddedKafka
    from airflow_eos_testing.airflow import AirflowStandalone
    from demo.broker_view import BrokerView, Transaction
    from demo.screen import Screen

DAG, TASK, RUN = "flights", "classify", "demo"
SOURCE = "flights"
OUTPUTS = (CLASSIFIED, DEAD_LETTERS)
LEDGER = "airflow-eos-ledger"
TRANSACTION = cursor_transactional_id(DEFAULT_PREFIX, "flights-classifier")
CLIENT_ID = "flights-demo"

_POLL = 0.3
_FIRST_TRY_TIMEOUT = 240.0
_SECOND_TRY_TIMEOUT = 300.0
_ENDED = ("success", "failed", "upstream_failed", "skipped", "up_for_retry")


class DemoError(Exception):
    """The demo did not go as it must."""


class Seen(NamedTuple):
    """Records in the output topics, as readers of both isolation levels count them."""

    committed: int
    uncommitted: int

    def __str__(self) -> str:
        return f"read_committed: {self.committed:,}   read_uncommitted: {self.uncommitted:,}"


class Story:
    """One run of the demo.

    :param records: number of records published.
    """

    def __init__(
        self, screen: Screen, kafka: EmbeddedKafka, airflow: AirflowStandalone, view: BrokerView, records: int
    ) -> None:
        self._screen = screen
        self._kafka = kafka
        self._airflow = airflow
        self._view = view
        self._records = records

    def kill_first_try(self, bytes_per_second: int) -> Seen:
        """Start the Dag, catch its first try with the transaction half written, and SIGKILL it.

        :returns: what it leaves behind.
        """
        screen = self._screen
        screen.title("First try: killed with its transaction open and half written")
        self._view.slow_down(CLIENT_ID, bytes_per_second)
        screen.event(f"broker quota: client {CLIENT_ID} may write {bytes_per_second:,} bytes/s")
        self._airflow.trigger(DAG, RUN)
        with screen.waiting(f"Dag {DAG} is triggered; waiting for its task to be half way"):
            found = self._wait_half_written()
        screen.event(str(found))
        screen.detail(f"{self._counts()}   of {self._records:,}")
        self._airflow.api.pause(DAG)  # a second try would end what is looked at here
        killed = self._airflow.kill_task(DAG, RUN, TASK, tree=True)
        screen.event(f"SIGKILL to the task: {len(killed)} processes (driver, Spark's JVM, Python workers)")
        left, seen = self._transaction(), self._counts()
        self._view.let_go(CLIENT_ID)
        screen.event(f"the dead try leaves behind: {left}")
        screen.detail(str(seen))
        if left is None or left.state != "Ongoing" or seen.committed or not self._half(seen.uncommitted):
            raise DemoError(f"the first try did not die half way: {left}, {seen}")
        self._airflow.api.unpause(DAG)
        return seen

    def watch_second_try(self, left: Seen) -> None:
        """Watch Airflow's own retry fence the dead try and commit.

        :param left: what the first try left behind.
        """
        screen = self._screen
        screen.title("Second try: the scheduler's own retry")
        shown = _phase(self._transaction())
        deadline = time.monotonic() + _SECOND_TRY_TIMEOUT
        with screen.waiting("waiting for the scheduler to notice and to try again"):
            while True:
                now = self._transaction()
                if now is not None and _phase(now) != shown:
                    shown = _phase(now)
                    self._show_step(now, left)
                task = self._task()
                if task["try_number"] > 1 and task["state"] in _ENDED:
                    break
                if task["state"] == "failed" or time.monotonic() > deadline:
                    raise DemoError(f"the second try did not commit: task is {task['state']!r}")
                time.sleep(_POLL)
        if task["state"] != "success":
            raise DemoError(f"try {task['try_number']} ended as {task['state']!r}, not as success")
        screen.event(f"try {task['try_number']} succeeded")
        screen.detail(f"{self._counts()}   (aborted records stay in the log, hidden)")

    def _show_step(self, now: Transaction, left: Seen) -> None:
        seen = self._counts()
        self._screen.event(str(now))
        self._screen.detail(str(seen))
        late = seen.uncommitted - left.uncommitted
        if now.state.endswith("Abort") and late > 0:
            # What the killed process had handed to its system: appended before the fence, aborted with it.
            self._screen.detail(f"({late:,} more of the dead try were still on their way to the broker)")

    def show_ledger(self) -> None:
        """Print the run record."""
        (record,) = self._run_records()
        self._screen.title("The ledger's record of the run, committed with the output")
        producer = record["producer"]
        rows = {
            "run": record["run_key"],
            "try": f"{record['try_number']} (clears: {record['clear_number']})",
            "producer": f"id {producer['producer_id']}, epoch {producer['producer_epoch']}",
            "read": f"{sum(record['records_read'].values()):,} records: "
            + ", ".join(f"{t}-{p} [{start}, {end})" for t, p, start, end in record["ranges"]),
            "written": f"{sum(r['records'] for r in record['receipts']):,} records to "
            f"{sum(1 for r in record['receipts'] if r['records'])} partitions",
            "states": ", ".join(f"{state} {seconds:.1f} s" for state, seconds in record["trace"]),
        }
        for name, text in rows.items():
            self._screen.detail(f"{name:<9} {text}")

    def clear(self) -> None:
        """Clear the task, and show that the ledger answers instead of a third run."""
        screen = self._screen
        screen.title("Cleared and run again: answered by the ledger")
        before, seen = self._transaction(), self._counts()
        self._airflow.wait_for_run(DAG, RUN)  # cleared while the scheduler ends the run, the task is lost
        self._airflow.clear(DAG, RUN, [TASK])
        with screen.waiting("the task is cleared; the scheduler runs it again"):
            task = self._airflow.wait_for_task(DAG, RUN, TASK, ["success", "failed"], try_number=3)
        after, now = self._transaction(), self._counts()
        summary = self._airflow.xcom(DAG, RUN, TASK)
        screen.event(
            f"try {task['try_number']}: {task['state']} after {task['duration']:.1f} s, "
            f"answered from the ledger: {'yes' if summary['found'] else 'no'}"
        )
        screen.detail(f"{now}\nits {after}")
        if task["state"] != "success" or not summary["found"] or (before, seen) != (after, now):
            raise DemoError("the cleared task was to be answered by the ledger and to touch nothing")
        if len(self._run_records()) != 1:
            raise DemoError("the cleared task wrote a second run record")

    def tally(self) -> Tally:
        """Read everything under read_committed and compare output and input record by record."""
        self._screen.title("Every record, read under read_committed and compared with the input")
        config = self._kafka.client_config()
        outputs = {topic: read_topic(config, topic) for topic in OUTPUTS}
        for topic, records in outputs.items():
            self._screen.detail(f"{topic}: {len(records):,} records")
        found = compare(read_topic(config, SOURCE), [r for records in outputs.values() for r in records])
        if found.records_in != self._records:
            raise DemoError(f"{self._records} records were published, a reader finds {found.records_in}")
        return found

    # -- looking ------------------------------------------------------------------------------------------

    def _wait_half_written(self) -> Transaction:
        deadline = time.monotonic() + _FIRST_TRY_TIMEOUT
        last = 0
        while time.monotonic() < deadline:
            task = self._task()
            if task["state"] in _ENDED:
                raise DemoError(f"the first try ended as {task['state']!r} before it could be killed")
            found = self._transaction()
            if found is not None and found.state == "Ongoing":
                count = self._counts().uncommitted
                # It stands, because the quota holds; or it moves, and is half way.
                if self._half(count) and (count == last or 2 * count >= self._records):
                    return found
                last = count
            time.sleep(_POLL)
        raise DemoError(f"the first try was not half way after {_FIRST_TRY_TIMEOUT:.0f} s")

    def _half(self, count: int) -> bool:
        return 0 < count < self._records

    def _task(self) -> dict[str, Any]:
        return dict(self._airflow.task(DAG, RUN, TASK))

    def _transaction(self) -> Transaction | None:
        return self._view.transaction(TRANSACTION)

    def _counts(self) -> Seen:
        config = self._kafka.client_config()
        committed = sum(count_records(config, topic, "read_committed") for topic in OUTPUTS)
        return Seen(committed, sum(count_records(config, topic, "read_uncommitted") for topic in OUTPUTS))

    def _run_records(self) -> list[dict[str, Any]]:
        """Read the ledger as anybody can: every run record that was ever committed."""
        records = read_topic(self._kafka.client_config(), LEDGER)
        return [json.loads(r.value) for r in records if r.value and is_run_record((r.key or b"").decode())]


def _phase(transaction: Transaction | None) -> tuple[str, int] | None:
    return None if transaction is None else (transaction.state, transaction.producer_epoch)
