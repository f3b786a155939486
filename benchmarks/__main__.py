"""Measure whole runs against Spark's own Kafka job and others, in interleaved rounds on one machine.

``python -m benchmarks`` is the comparison in a warm session (``make bench``, behind ``fresh``); ``python -m
benchmarks micro`` measures encoding and reading alone, ``python -m benchmarks scaling`` sizes, cores and
fixed costs, ``python -m benchmarks small`` a small run in a fresh process and as a task of Airflow, ``python
-m benchmarks fresh`` the first jobs of a fresh process beside Flink, Kafka Streams and plain clients,
``python -m benchmarks ledger`` a run behind many others, ``python -m benchmarks curves`` a run by its
partitions, pipelines and runs at once, ``python -m benchmarks page`` each page in Airflow behind many runs,
``python -m benchmarks scale`` one run over 100,000,000 records, ``python -m benchmarks executors`` a run by
its executor processes, ``python -m benchmarks way`` what a small run calls and sends, ``python -m
benchmarks postgres_copy`` rows into PostgreSQL, ``python -m benchmarks tables`` runs into an Iceberg table
beside Spark's own job to Parquet, ``python -m benchmarks tuning`` which options make Spark's own job fastest,
``python -m benchmarks protection`` what it costs that the Spark of a task answers nobody else. ``python -m
benchmarks fresh --workload parse`` compares jobs that parse JSON. Reports go to ``--out``, as JSON and SVG.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

MEASUREMENTS = {
    "compare": ("records", "rounds", "out"),
    "micro": ("out", "rounds"),
    "scaling": ("out", "rounds"),
    "small": ("out", "rounds"),
    "fresh": ("records", "rounds", "out", "only", "workload"),
    "tuning": ("records", "rounds", "out"),
    "tables": ("records", "rounds", "out"),
    "ledger": ("out", "rounds"),
    "curves": ("out", "rounds", "records", "most"),
    "page": ("out", "rounds"),
    "scale": ("out", "records"),
    "executors": ("out", "rounds", "records"),
    "way": ("out",),
    "postgres_copy": ("out", "rounds"),
    "protection": ("out", "rounds", "records"),
}
"""The options that each is called with; its function and its module have its name."""
RECORDS = {"curves": 20_000, "protection": 1_000_000, "scale": 100_000_000}


def main() -> int:
    """Run the chosen measurement; its closing line is its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="compare",
        choices=tuple(MEASUREMENTS),
    )
    parser.add_argument("--records", type=int, default=os.environ.get("RECORDS") or None)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 5))
    parser.add_argument(
        "--only", nargs="*", default=(), help="fresh: contenders that take part, as arrow flink"
    )
    parser.add_argument("--workload", default="copy", choices=("copy", "parse"), help="fresh: what jobs do")
    parser.add_argument("--most", type=int, default=2_000, help="curves: largest number")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of the reports")
    options = parser.parse_args()
    options.records = options.records or RECORDS.get(options.what, 2_000_000)
    logging.basicConfig(level=logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    measure = getattr(import_module(f"benchmarks.{options.what}"), options.what)
    return int(measure(*(getattr(options, name) for name in MEASUREMENTS[options.what])))


if __name__ == "__main__":
    sys.exit(main())
