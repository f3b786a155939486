"""The demo with an Iceberg table as the sink: a run is killed between the table's commit and Kafka's."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.ledger.keys import transactional_id
from airflow_eos.model.ranges import Interval
from airflow_eos.model.spec import RunSpec
from airflow_eos_testing import read_topic
from airflow_eos_testing.faults.held_catalog import HeldCatalog
from demo.chapters import ENDED, POLL, RUN, SOURCE, Chapters, DemoError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos_testing import EmbeddedKafka
    from airflow_eos_testing.airflow import AirflowStandalone
    from demo.broker_view import BrokerView
    from demo.lake import Lake
    from demo.screen import Screen
    from demo.tally import Tally
    from spark_apps.flights_input import Message

_PUBLISH_TIMEOUT = 60.0


class Rows(NamedTuple):
    """The table's content: the number of rows that DuckDB counts, and the snapshot ids."""

    rows: int
    snapshots: tuple[int, ...]

    def __str__(self) -> str:
        named = ", ".join(map(str, self.snapshots)) or "none"
        return f"rows in the table: {self.rows:,}   snapshots: {named}"


class TableStory(Chapters):
    """The demo with an Iceberg table as the sink.

    :param flights: the published flights.
    """

    dag = "flights_table"
    task = "load"
    before = ("over",)

    def __init__(
        self,
        screen: Screen,
        kafka: EmbeddedKafka,
        airflow: AirflowStandalone,
        view: BrokerView,
        flights: Sequence[Message],
        lake: Lake,
    ) -> None:
        super().__init__(screen, kafka, airflow, view)
        self._records = len(flights)
        self._lake = lake
        days = [dt.datetime.fromtimestamp(f.timestamp // 1000, dt.timezone.utc).date() for f in flights]
        self._interval = Interval(_midnight(min(days)), _midnight(max(days) + dt.timedelta(days=1)))
        spec = RunSpec(
            kafka=kafka.client_config(),
            pipeline=f"{self.dag}.{self.task}",
            run_id=RUN,
            source_topics=(SOURCE,),
            group_id="flights-table",
            ranges=self._interval,
        )
        self.transactional_id = transactional_id(spec)

    def tell(self) -> Tally:
        """Go through all chapters and return the comparison of the table with the input.

        :raises DemoError: it did not go as expected.
        """
        left = self._kill_first_try()
        self.watch_second_try()
        if self.seen() != left:
            raise DemoError(f"the second try should have adopted {left}; the table has {self.seen()}")
        self.screen.detail("the retry adopted the snapshot of the dead try: it wrote no row")
        self.show_ledger()
        self.clear()
        self.screen.title("Every row, read by DuckDB and compared with the input")
        self.screen.detail(str(self.seen()))
        tally = self._lake.compare(read_topic(self.kafka.client_config(), SOURCE))
        if tally.records_in != self._records:
            raise DemoError(f"{self._records} records were published, a reader finds {tally.records_in}")
        self.screen.title("The table is kept: query it, for example with DuckDB")
        self.screen.detail(self._lake.how_to_query)
        return tally

    def seen(self) -> Rows:
        """Count the table's rows and name its snapshots."""
        ((rows,),) = self._lake.rows("select count(*) from flights")
        return Rows(rows, tuple(snapshot.snapshot_id for snapshot in self._lake.table.snapshots()))

    def written(self, record: dict[str, Any]) -> str:
        """Return the ledger record's description of the output."""
        table = record["details"]["table"]
        return f"{table['rows']:,} rows to {table['sink']}, snapshot {table['snapshot']}"

    def _kill_first_try(self) -> Rows:
        """Let the first try commit to the table while the broker is paused, and SIGKILL it there."""
        screen = self.screen
        screen.title("First try: killed between the table's commit and Kafka's")
        broker = self.kafka.brokers[0]
        with HeldCatalog(self._lake.database, self._lake.metadata) as held:
            start, end = self._interval.start.isoformat(), self._interval.end.isoformat()
            self.airflow.trigger(
                self.dag, RUN, logical_date=start, data_interval_start=start, data_interval_end=end
            )
            with screen.waiting(f"Dag {self.dag} is triggered; waiting until its data files are written"):
                held.wait_for(1, is_over=lambda: self.task_now()["state"] in ENDED)
            screen.event("all data files are written; the ledger has the intent to publish them")
            screen.detail(str(self.seen()))
            broker.pause()
            screen.event("the broker is paused, so that Kafka's commit cannot follow the table's")
        left = self._wait_published()
        screen.event(
            "the catalog accepted the table's commit: readers see rows that are not committed in Kafka yet"
        )
        screen.detail(str(left))
        self.kill()
        broker.resume()
        records = len(self.run_records())
        screen.event(f"the broker is resumed; run records in the ledger: {records}")
        if records or left.rows != self._records:
            raise DemoError(f"the first try did not die between the commits: {left}, {records} records")
        self.airflow.api.unpause(self.dag)
        return left

    def _wait_published(self) -> Rows:
        deadline = time.monotonic() + _PUBLISH_TIMEOUT
        while not (seen := self.seen()).rows:
            if time.monotonic() > deadline:
                raise DemoError(f"the first try did not publish in {_PUBLISH_TIMEOUT:.0f} s")
            time.sleep(POLL)
        return seen


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.timezone.utc)
