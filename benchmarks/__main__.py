"""Measure whole runs against Spark's own Kafka job and others, in interleaved rounds on one machine.

``python -m benchmarks`` is the comparison (``make bench``); ``python -m benchmarks micro`` measures encoding
and reading alone, ``python -m benchmarks scaling`` sizes, cores and fixed costs, ``python -m benchmarks
small`` a small run in a fresh process and as a task of Airflow, ``python -m benchmarks fresh`` the first jobs
of a fresh process beside Flink, Kafka Streams and plain clients, ``python -m benchmarks ledger`` a run
behind many others, ``python -m benchmarks curves`` a run by its partitions, pipelines and runs at once,
``python -m benchmarks page`` each page in Airflow behind many runs.
Reports go to ``--out``, as JSON and SVG.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path


def main() -> int:
    """Run the chosen measurement; its closing line is its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="compare",
        choices=("compare", "micro", "scaling", "small", "fresh", "ledger", "curves", "page"),
    )
    parser.add_argument("--records", type=int, default=os.environ.get("RECORDS") or None)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 5))
    parser.add_argument("--cold-rounds", type=int, default=2, help="rounds of fresh processes; 0 for none")
    parser.add_argument(
        "--only", nargs="*", default=(), help="fresh: contenders that take part, as arrow flink"
    )
    parser.add_argument("--most", type=int, default=2_000, help="curves: largest number")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder of the reports")
    options = parser.parse_args()
    options.records = options.records or (20_000 if options.what == "curves" else 2_000_000)
    logging.basicConfig(level=logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "micro":
        from benchmarks.micro import micro

        return micro(options.out, options.rounds)
    if options.what == "scaling":
        from benchmarks.scaling import scaling

        return scaling(options.out, options.rounds)
    if options.what == "small":
        from benchmarks.small import small

        return small(options.out, options.rounds)
    if options.what == "fresh":
        from benchmarks.fresh import fresh

        return fresh(options.records, options.rounds, options.out, options.only)
    if options.what == "ledger":
        from benchmarks.ledger import ledger

        return ledger(options.out, options.rounds)
    if options.what == "curves":
        from benchmarks.curves import curves

        return curves(options.out, options.rounds, options.records, options.most)
    if options.what == "page":
        from benchmarks.page import page

        return page(options.out, options.rounds)
    from benchmarks.compare import compare

    return compare(options.records, options.rounds, options.cold_rounds, options.out)


if __name__ == "__main__":
    sys.exit(main())
