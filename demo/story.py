"""The demo with topics as sinks: a run is killed with its transaction half written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.ledger.keys import cursor_transactional_id
from airflow_eos.model.spec import DEFAULT_PREFIX
from airflow_eos_testing import count_records, read_topic
from demo.chapters import ENDED, POLL, RUN, SOURCE, Chapters, DemoError
from demo.tally import CLASSIFIED, DEAD_LETTERS, Tally, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos_testing import EmbeddedKafka
    from airflow_eos_testing.airflow import AirflowStandalone
    from demo.broker_view import BrokerView, Transaction
    from demo.screen import Screen
    from spark_apps.flights_input import Message

OUTPUTS = (CLASSIFIED, DEAD_LETTERS)
CLIENT_ID = "flights-demo"

_FIRST_TRY_TIMEOUT = 240.0
# Bytes per second, as a share of the input's bytes. The broker accepts about ten seconds' worth at once and
# then throttles: some of the output is written soon, all of it would take half a minute.
_QUOTA_SHARE = 0.006


class Seen(NamedTuple):
    """Records in the output topics, as readers of both isolation levels count them."""

    committed: int
    uncommitted: int

    def __str__(self) -> str:
        return f"read_committed: {self.committed:,}   read_uncommitted: {self.uncommitted:,}"


class Story(Chapters):
    """The demo with topics as sinks.

    :param flights: the published flights.
    """

    dag = "flights"
    task = "classify"
    transactional_id = cursor_transactional_id(DEFAULT_PREFIX, "flights-classifier")

    def __init__(
        self,
        screen: Screen,
        kafka: EmbeddedKafka,
        airflow: AirflowStandalone,
        view: BrokerView,
        flights: Sequence[Message],
    ) -> None:
        super().__init__(screen, kafka, airflow, view)
        self._records = len(flights)
        self._bytes_per_second = int(_QUOTA_SHARE * sum(len(flight.value) for flight in flights))
        self._left = Seen(0, 0)

    def tell(self) -> Tally:
        """Go through all chapters and return the comparison of output and input.

        :raises DemoError: it did not go as expected.
        """
        self._kill_first_try()
        self.watch_second_try("   (aborted records stay in the log, hidden)")
        self.show_ledger()
        self.clear()
        return self._tally()

    def seen(self) -> Seen:
        """Count the records of the output topics."""
        config = self.kafka.client_config()
        committed = sum(count_records(config, topic, "read_committed") for topic in OUTPUTS)
        return Seen(committed, sum(count_records(config, topic, "read_uncommitted") for topic in OUTPUTS))

    def show_step(self, now: Transaction) -> None:
        """Show that the retry's transaction has reached its next state."""
        super().show_step(now)
        late = self.seen().uncommitted - self._left.uncommitted
        if now.state.endswith("Abort") and late > 0:
            # From the killed process's socket buffers: appended before the fence, aborted with it.
            self.screen.detail(
                f"({late:,} more records of the dead try were still on their way to the broker)"
            )

    def written(self, record: dict[str, Any]) -> str:
        """Return the ledger record's description of the output."""
        return (
            f"{sum(r['records'] for r in record['receipts']):,} records to "
            f"{sum(1 for r in record['receipts'] if r['records'])} partitions"
        )

    def _kill_first_try(self) -> None:
        """Start the Dag, and SIGKILL its first try while its transaction is half written."""
        screen = self.screen
        screen.title("First try: killed with its transaction open and half written")
        self.view.slow_down(CLIENT_ID, self._bytes_per_second)
        screen.event(f"broker quota: client {CLIENT_ID} may write {self._bytes_per_second:,} bytes/s")
        self.airflow.trigger(self.dag, RUN)
        with screen.waiting(f"Dag {self.dag} is triggered; waiting for its task to be half way"):
            transaction = self._wait_half_written()
        screen.event(str(transaction))
        screen.detail(f"{self.seen()}   of {self._records:,}")
        self.kill()
        left, seen = self.transaction(), self.seen()
        self.view.let_go(CLIENT_ID)
        screen.event(f"the dead try leaves behind: {left}")
        screen.detail(str(seen))
        if left is None or left.state != "Ongoing" or seen.committed or not self._half(seen.uncommitted):
            raise DemoError(f"the first try did not die half way: {left}, {seen}")
        self._left = seen
        self.airflow.api.unpause(self.dag)

    def _tally(self) -> Tally:
        """Read everything under read_committed and compare output and input record by record."""
        self.screen.title("Every record, read under read_committed and compared with the input")
        config = self.kafka.client_config()
        outputs = {topic: read_topic(config, topic) for topic in OUTPUTS}
        for topic, records in outputs.items():
            self.screen.detail(f"{topic}: {len(records):,} records")
        tally = compare(read_topic(config, SOURCE), [r for records in outputs.values() for r in records])
        if tally.records_in != self._records:
            raise DemoError(f"{self._records} records were published, a reader finds {tally.records_in}")
        return tally

    def _wait_half_written(self) -> Transaction:
        deadline = time.monotonic() + _FIRST_TRY_TIMEOUT
        last = 0
        while time.monotonic() < deadline:
            task = self.task_now()
            if task["state"] in ENDED:
                raise DemoError(f"the first try ended as {task['state']!r} before it could be killed")
            transaction = self.transaction()
            if transaction is not None and transaction.state == "Ongoing":
                count = self.seen().uncommitted
                # Either the quota holds it up, or it progresses and is half way.
                if self._half(count) and (count == last or 2 * count >= self._records):
                    return transaction
                last = count
            time.sleep(POLL)
        raise DemoError(f"the first try was not half way after {_FIRST_TRY_TIMEOUT:.0f} s")

    def _half(self, count: int) -> bool:
        return 0 < count < self._records
