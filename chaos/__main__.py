"""Run the campaign: ``python -m chaos [--seed N] [--minutes N] [--short] [--cluster] [--cells F:STATE,...]``.

First it runs every reachable cell of the fault table in turn, however long that takes, then random cells for
the given minutes. The exit code is 0 only if every record is in the output exactly once and everything else
agrees with it.
"""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import signal
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos_testing.cluster import DEFAULT_VERSION
from airflow_eos_testing.faults import SparkCluster
from chaos.airflow_task import AirflowTasks
from chaos.drivers import ClusterDriver, DriverPool
from chaos.experiments import Experiments
from chaos.playground import Playground
from chaos.report import Report, last_line
from chaos.table import BROKER_FAULTS, CELLS, SHORT, Cell, cell_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

MINUTES = 12.0
"""Minutes of random cells. The table before them takes about a quarter of an hour on two cores."""
_TABLE_MINUTES = 12.0
RECORDS = 110_000
SHORT_RECORDS = 20_000
SPARE = 3
"""Number of warm drivers: two for a zombie and its successor, one to replace a dead one."""
_MAX_PER_SECOND = 400.0
_STORM_SHARE = 0.2
"""Share of the random cells during which a broker is killed, too."""
_INTERRUPTED = 130


@dataclass(frozen=True)
class Plan:
    """The parameters of one campaign.

    :param cells: cells to run in turn.
    :param minutes: minutes of random cells, after those in turn.
    :param rate: records per second that are published all the time.
    :param records: minimum number of inputs; the rest is published at the end.
    :param on_cluster: whether every driver has two executors on a cluster; otherwise only in cells that kill
        executors.
    """

    seed: int
    cells: Sequence[Cell]
    minutes: float
    rate: float
    records: int
    kafka: str
    on_cluster: bool


def main() -> int:
    """Run the campaign and return its exit code."""
    parser = argparse.ArgumentParser(prog="chaos", description="Faults at every state of a pipeline.")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help="of random cells, after the table; default %(default)s",
    )
    parser.add_argument(
        "--kafka", default=DEFAULT_VERSION, help="version of the brokers, default %(default)s"
    )
    parser.add_argument(
        "--records", type=int, default=RECORDS, help="least number of inputs (default %(default)s)"
    )
    parser.add_argument(
        "--cells", default="", help="only these cells, as ZOMBIE:WRITTEN,DRIVER:OPEN; no random ones"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="every driver has two executors on a Spark cluster"
    )
    parser.add_argument("--short", action="store_true", help="a fixed small set of cells; no random ones")
    parser.add_argument("--line-to", type=Path, help="file to which the last line is also written")
    options = parser.parse_args()
    try:
        cells = [cell_of(text) for text in filter(None, options.cells.split(","))]
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(level=logging.WARNING, format="           %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _end)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    if options.short:
        plan = Plan(seed, SHORT, 0.0, SHORT_RECORDS / 120, SHORT_RECORDS, options.kafka, options.cluster)
    else:
        minutes = 0.0 if cells else options.minutes
        rate = min(_MAX_PER_SECOND, options.records / ((minutes + _TABLE_MINUTES) * 60))
        plan = Plan(seed, cells or CELLS, minutes, rate, options.records, options.kafka, options.cluster)
    report = Report()
    report.say(f"seed {seed}")
    try:
        line, well = _campaign(plan, report)
    except KeyboardInterrupt:
        report.say("interrupted; everything it started is stopped")
        return _INTERRUPTED
    sys.stdout.write(f"{line}\n")
    if options.line_to is not None:
        options.line_to.write_text(f"{line}\n")
    return 0 if well else 1


def _campaign(plan: Plan, report: Report) -> tuple[str, bool]:
    """Run the campaign; return the last line, and whether all went well."""
    chance = random.Random(plan.seed)
    with ExitStack() as stack:
        spare = SPARE if plan.minutes else SPARE - 1
        workers = None
        if plan.on_cluster:
            workers = stack.enter_context(SparkCluster(cores=2 * SPARE, memory=f"{2 * SPARE}g"))
        pool = stack.enter_context(DriverPool(spare, workers))
        playground = stack.enter_context(Playground(chance, plan.rate, plan.kafka))
        cluster = stack.enter_context(closing(ClusterDriver()))
        airflow = stack.enter_context(closing(AirflowTasks(playground)))
        experiments = Experiments(playground, pool, cluster, airflow, chance, slow=plan.minutes > 0)
        report.say(
            f"3 brokers {plan.kafka} run; {plan.rate:.0f} records/s; {len(plan.cells)} cells of the table"
        )
        experiments.plain_run()
        for cell in plan.cells:
            _inject(report, experiments, cell)
        if plan.minutes:
            report.say(f"the table is done; {plan.minutes:g} minutes of random faults")
        begun = time.monotonic()
        while time.monotonic() - begun < plan.minutes * 60:
            cell = chance.choice(CELLS)
            storm = cell.fault not in BROKER_FAULTS and chance.random() < _STORM_SHARE
            _inject(report, experiments, cell, storm=storm)
        playground.stop_feeding()
        playground.publish(max(0, plan.records - len(playground.inputs)))
        experiments.plain_run()
        verdict, runs = playground.verdict()
        watched = len(playground.reader)
    report.say(f"seed {plan.seed}; a reader watched {watched} records all along")
    sys.stdout.write(f"\n{report.table()}\n\n")
    for text in filter(None, (*report.failures, verdict.complaints())):
        sys.stdout.write(f"{text}\n")
    return last_line(runs, report.faults, verdict), verdict.exact and not report.failures


def _inject(report: Report, experiments: Experiments, cell: Cell, *, storm: bool = False) -> None:
    """Run one cell; a failed cell fails the campaign, but only at its end."""
    try:
        report.add(cell, experiments.run_with_broker_killed(cell) if storm else experiments.run(cell))
    except Exception as error:  # noqa: BLE001 - of any kind: the campaign goes on and reports it
        report.fail(cell, error)


def _end(_signum: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
