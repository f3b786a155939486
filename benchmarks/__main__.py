"""Measure whole runs against Spark's own Kafka job and others, in interleaved rounds on one machine.

``python -m benchmarks NAME``; ``--help`` lists the measurements. ``make bench`` runs the most important ones.
Reports go to ``--out``, as JSON and SVG.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """A module of this package with a function of the same name.

    :param description: for ``--help``.
    :param options: command-line options to pass to the function, in order.
    """

    description: str
    options: tuple[str, ...]


MEASUREMENTS = {
    "compare": Measurement("whole runs in a warm session, beside Spark's", ("records", "rounds", "out")),
    "micro": Measurement("encoding and reading alone", ("out", "rounds")),
    "scaling": Measurement("sizes, cores and fixed costs", ("out", "rounds")),
    "small": Measurement("a small run in a fresh process and as a task of Airflow", ("out", "rounds")),
    "fresh": Measurement(
        "the first jobs of a fresh process beside Spark, Flink, Kafka Streams and plain clients",
        ("records", "rounds", "out", "only", "workload"),
    ),
    "tuning": Measurement("which options make Spark's own job fastest", ("records", "rounds", "out")),
    "tables": Measurement(
        "runs into an Iceberg table beside Spark's own job to Parquet", ("records", "rounds", "out")
    ),
    "ledger": Measurement("a run after many others in its ledger", ("out", "rounds")),
    "curves": Measurement(
        "a run by number of partitions, pipelines and concurrent runs", ("out", "rounds", "records", "most")
    ),
    "pipelines": Measurement(
        "500 pipelines with one run per minute and nothing to read", ("out", "rounds", "most")
    ),
    "page": Measurement("each page in Airflow after many runs", ("out", "rounds")),
    "scale": Measurement("one run over 100,000,000 records", ("out", "records")),
    "executors": Measurement("a run by number of executor processes", ("out", "rounds", "records")),
    "way": Measurement("calls and requests of a small run", ("out",)),
    "postgres_copy": Measurement("rows into PostgreSQL", ("out", "rounds")),
    "protection": Measurement(
        "the cost of protecting a task's Spark from other users", ("out", "rounds", "records")
    ),
}
RECORDS = {"curves": 20_000, "protection": 1_000_000, "scale": 100_000_000}


def main() -> int:
    """Run the chosen measurement and return its exit code; its last line summarises the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n".join(f"{name:15} {each.description}" for name, each in MEASUREMENTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("measurement", nargs="?", default="compare", choices=tuple(MEASUREMENTS))
    parser.add_argument("--records", type=int, default=os.environ.get("RECORDS") or None)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 5))
    parser.add_argument(
        "--only", nargs="*", default=(), help="fresh: contenders that take part, such as arrow flink"
    )
    parser.add_argument("--workload", default="copy", choices=("copy", "parse"), help="fresh: what jobs do")
    parser.add_argument(
        "--most", type=int, help="curves: largest number, default 2,000; pipelines: their number, default 500"
    )
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of the reports")
    options = parser.parse_args()
    options.most = options.most or (500 if options.measurement == "pipelines" else 2_000)
    options.records = options.records or RECORDS.get(options.measurement, 2_000_000)
    logging.basicConfig(level=logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    measure = getattr(import_module(f"benchmarks.{options.measurement}"), options.measurement)
    return int(measure(*(getattr(options, name) for name in MEASUREMENTS[options.measurement].options)))


if __name__ == "__main__":
    sys.exit(main())
