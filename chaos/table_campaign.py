"""The campaign with a table as the sink: ``python -m chaos.table_campaign [--seed N] [--minutes N]``.

Runs of one cursor append to an Iceberg table of a REST catalog. Each is held at a state; its driver is killed
or frozen until the next run has ended, the catalog is killed, or the answer of the commit is lost. Meanwhile
other writers append to the table, rewrite its files and expire its snapshots. At the end DuckDB counts the
rows. The exit code is 0 only if each record is in the table once, and ledger and offsets agree with it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from airflow_eos import arrow_process
from airflow_eos.exceptions import EosError
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.agreement import ledger_records, offsets_complaints
from airflow_eos_testing.exceptions import DriverDied, EmbeddedDriverError
from airflow_eos_testing.faults.catalog_proxy import CatalogFault, CatalogProxy
from airflow_eos_testing.iceberg_catalog import IcebergRestCatalog
from airflow_eos_testing.oracle import InputLog
from chaos.drivers import DriverPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos_testing.faults import DriverProcess

SOURCE, LEDGER, GROUP, TABLE = "lake-in", "lake-ledger", "lake", "db.lake"
PARTITIONS, DRIVERS = 4, 3
MINUTES = 10.0
_RECORDS = 200
"""Number of inputs of one run."""
_TRIES = 5
_TIMEOUT = 240.0
_PAUSE_SECONDS = 1.5
"""Longest pause between two commits of other writers."""
STATES = (State.SEALED, State.INTENT, State.PUBLISHED, State.OPEN, State.STAGED, State.PROVEN)
_BEFORE_THE_TABLE = (State.SEALED, State.INTENT)
_LOST_ANSWER = "lost answer"


def rows(df: Any) -> Any:
    """The process function: each record's tag."""
    return df.selectExpr("cast(value as string) tag")


@arrow_process
def arrow_rows(batch: Any) -> Any:
    """The process function on Arrow."""
    return pa.table({"tag": pc.cast(batch["value"], pa.string())})


class Upkeep:
    """Other writers of the table: a thread that appends, rewrites and expires."""

    def __init__(self, catalog: IcebergRestCatalog, chance: random.Random) -> None:
        self._catalog = catalog
        self._chance = chance
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.done: Counter[str] = Counter()
        self.appended: set[str] = set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its last commit."""
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        while not self._over.wait(self._chance.uniform(0, _PAUSE_SECONDS)):
            act = self._chance.choice((self._append, self._rewrite, self._expire))
            try:
                act(load_catalog("upkeep", **self._catalog.properties).load_table(TABLE))
            except CommitFailedException:
                self.done["refused"] += 1
            except Exception as error:  # noqa: BLE001 - the catalog is killed meanwhile
                logging.getLogger(__name__).info("upkeep: %s", error)
                self.done["unanswered"] += 1
            else:
                self.done[act.__name__.strip("_")] += 1

    def _append(self, table: Any) -> None:
        tag = f"foreign:{next(self._numbers)}"
        table.append(pa.table({"tag": [tag]}))
        self.appended.add(tag)

    def _rewrite(self, table: Any) -> None:
        """Rewrite all rows into one file; refused if another commit came in between (no retries)."""
        table.overwrite(table.scan().to_arrow())

    def _expire(self, table: Any) -> None:
        current = table.current_snapshot()
        old = [snapshot.snapshot_id for snapshot in table.snapshots() if current and snapshot != current]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()


class Lake:
    """Injects faults into runs of the pipeline.

    :param spec: spec of each run, except for its id.
    """

    def __init__(
        self,
        spec: RunSpec,
        inputs: InputLog,
        pool: DriverPool,
        catalog: IcebergRestCatalog,
        proxy: CatalogProxy,
    ) -> None:
        self._spec = spec
        self._inputs = inputs
        self._pool = pool
        self._catalog = catalog
        self._proxy = proxy
        self._numbers = itertools.count(1)
        self.faults: dict[str, Callable[[State], None]] = {
            "driver SIGKILL": self._driver,
            "zombie": self._zombie,
            "catalog SIGKILL": self._catalog_killed,
            _LOST_ANSWER: self._lost_answer,
        }
        self.cells = [
            (fault, state)
            for fault in self.faults
            for state in STATES
            if fault != _LOST_ANSWER or state in _BEFORE_THE_TABLE
        ]

    def plain_run(self) -> None:
        """Execute a run that reads all remaining records."""
        with self._pool.lent() as driver:
            self._run_until_committed(driver, self._next_run(publish=False))

    def _next_run(self, *, publish: bool = True) -> RunSpec:
        if publish:
            self._inputs.publish(dict(self._spec.kafka), SOURCE, _RECORDS)
        return replace(self._spec, run_id=f"run-{next(self._numbers):04d}")

    def _driver(self, state: State) -> None:
        spec = self._next_run()
        with self._pool.lent() as driver:
            attempt = driver.run(spec, process_of(spec), stop_at=state)
            attempt.wait_for(state, _TIMEOUT)
            driver.kill()
            try:
                attempt.result(_TIMEOUT)
            except DriverDied:
                pass
            else:
                raise RuntimeError("the run of a dead driver has ended well")
        with self._pool.lent() as driver:
            self._run_until_committed(driver, spec)

    def _zombie(self, state: State) -> None:
        """Freeze a driver until the next run, which settles the frozen run's INTENT, has committed."""
        spec = self._next_run()
        with self._pool.lent() as driver, self._pool.lent() as successor:
            attempt = driver.run(spec, process_of(spec), stop_at=state)
            attempt.wait_for(state, _TIMEOUT)
            driver.pause()
            try:
                self._run_until_committed(successor, self._next_run())
            finally:
                attempt.release(for_good=True)
                driver.resume()
            try:
                is_found = attempt.result(_TIMEOUT).found
            except EmbeddedDriverError:
                raise
            except EosError:
                is_found = True  # refused
            if not is_found:
                raise RuntimeError("the zombie has committed itself")
            self._run_until_committed(driver, spec)

    def _catalog_killed(self, state: State) -> None:
        self._held(state, self._kill_catalog)

    def _lost_answer(self, state: State) -> None:
        lost: list[CatalogFault] = []
        self._held(state, lambda: lost.append(self._proxy.lose_response()))
        if not lost[0].hits:
            raise RuntimeError("no commit to the table has lost its answer")

    def _kill_catalog(self) -> None:
        self._catalog.kill()
        self._catalog.start()

    def _held(self, state: State, damage: Callable[[], object]) -> None:
        spec = self._next_run()
        with self._pool.lent() as driver:
            attempt = driver.run(spec, process_of(spec), stop_at=state)
            attempt.wait_for(state, _TIMEOUT)
            damage()
            attempt.release(for_good=True)
            try:
                attempt.result(_TIMEOUT)
            except EmbeddedDriverError:
                raise
            except EosError:
                self._run_until_committed(driver, spec)

    def _run_until_committed(self, driver: DriverProcess, spec: RunSpec) -> None:
        """Retry until the run is committed, as Airflow does."""
        for number in range(2, _TRIES + 2):
            if self._committed(driver, replace(spec, try_number=number), is_last=number > _TRIES):
                return

    @staticmethod
    def _committed(driver: DriverProcess, spec: RunSpec, *, is_last: bool) -> bool:
        try:
            driver.run(spec, process_of(spec)).result(_TIMEOUT)
        except EmbeddedDriverError:
            raise
        except EosError:
            if is_last:
                raise
            return False
        return True


def process_of(spec: RunSpec) -> Callable[..., Any]:
    """Return a run's process function, the same in all of its tries."""
    return arrow_rows if int(spec.run_id.rpartition("-")[2]) % 2 else rows


def main() -> int:
    """Run the campaign and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="chaos.table_campaign", description="Faults of runs that append to a table."
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="default %(default)s")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    _say(f"seed {seed}")
    complaints = _campaign(random.Random(seed), options.minutes)
    for complaint in complaints:
        sys.stdout.write(f"{complaint}\n")
    return 1 if complaints else 0


def _say(line: str) -> None:
    """Write a line unbuffered: if a campaign hangs, the last line names the fault."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _campaign(chance: random.Random, minutes: float) -> list[str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-eos-lake-")))
        kafka = stack.enter_context(EmbeddedKafka())
        catalog = stack.enter_context(IcebergRestCatalog(folder))
        proxy = stack.enter_context(CatalogProxy(catalog.address))
        pool = stack.enter_context(DriverPool(DRIVERS))
        kafka.create_topic(SOURCE, PARTITIONS)
        own = load_catalog("own", **catalog.properties)
        own.create_namespace("db")
        schema = pa.schema([("tag", pa.string())])
        own.create_table(TABLE, schema, properties={"commit.retry.num-retries": "0"})
        inputs, spec = InputLog(PARTITIONS), _spec(kafka, proxy)
        lake, upkeep = Lake(spec, inputs, pool, catalog, proxy), Upkeep(catalog, chance)
        upkeep.start()
        met: Counter[str] = Counter()
        failures = []
        begun = time.monotonic()
        while time.monotonic() - begun < minutes * 60:
            fault, state = chance.choice(lake.cells)
            _say(f"{time.monotonic() - begun:5.0f} s: {fault} at {state.value}")
            try:
                lake.faults[fault](state)
            except Exception as error:  # noqa: BLE001 - the campaign goes on and reports it
                failures.append(f"{fault} at {state.value}: {type(error).__name__}: {error}")
                _say(failures[-1])
            met[f"{fault} at {state.value}"] += 1
        _say(f"{time.monotonic() - begun:5.0f} s: the last run")
        upkeep.stop()
        lake.plain_run()
        complaints = _complaints(kafka, own.load_table(TABLE), inputs, upkeep)
    for name, count in sorted(met.items()):
        sys.stdout.write(f"{count:4d} {name}\n")
    sys.stdout.write(
        f"{sum(met.values())} faults, {len(inputs)} records, others at the table: {dict(upkeep.done)}; "
        f"{'exact' if not complaints else 'NOT exact'}\n"
    )
    return [*failures, *complaints]


def _spec(kafka: EmbeddedKafka, proxy: CatalogProxy) -> RunSpec:
    return RunSpec(
        kafka=kafka.client_config(),
        pipeline=GROUP,
        run_id="none",
        source_topics=(SOURCE,),
        sink=IcebergTable(TABLE, catalog="lake", properties=proxy.properties),
        group_id=GROUP,
        prefix=GROUP,
        ledger=LedgerSettings(LEDGER, partitions=1),
    )


def _complaints(kafka: EmbeddedKafka, table: Any, inputs: InputLog, upkeep: Upkeep) -> list[str]:
    files = [file["file_path"].removeprefix("file://") for file in table.inspect.files().to_pylist()]
    query = "select tag, count(*) from read_parquet(?) group by tag"
    counts = dict(duckdb.connect().execute(query, [files]).fetchall()) if files else {}
    expected = {*inputs.tags(), *upkeep.appended}
    twice = sorted(tag for tag, count in counts.items() if count > 1)
    lost = sorted(expected - counts.keys())
    strange = sorted(tag for tag in counts.keys() - expected if not tag.startswith("foreign:"))
    records = ledger_records(kafka.client_config(), LEDGER, GROUP)
    written = sum(record.records_written for record in records)
    idle = sorted({"append", "rewrite", "expire"} - upkeep.done.keys())
    return [
        *([f"others at the table never did {idle}"] if idle else []),
        *([f"{len(twice)} rows more than once: {twice[:10]}"] if twice else []),
        *([f"{len(lost)} rows lost: {lost[:10]}"] if lost else []),
        *([f"{len(strange)} rows that nobody wrote: {strange[:10]}"] if strange else []),
        *([f"the ledger counts {written} rows of {len(inputs)}"] if written != len(inputs) else []),
        *offsets_complaints(kafka.client_config(), GROUP, records, SOURCE),
    ]


if __name__ == "__main__":
    sys.exit(main())
