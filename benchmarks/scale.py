"""One exactly-once run over very many records, compared with the formula in docs/performance.md.

Two small runs in the same session give the formula its constants, so the comparison is of how a run scales.
The input is written by runs of this package, too: copies of a small topic, each in its own transaction.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.run.states import State
from airflow_eos_testing import count_records
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.processes import Watch
from benchmarks.records import PARTITIONS, publish
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Mapping

FEW, SOME = 1_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run.

    :param open_seconds: from the start of the transaction to the end of the run.
    :param peak_mb: largest resident set of one process, by kind; see :class:`benchmarks.processes.Usage`.
    :param disk_mb: peak size of Spark's files, mostly sealed batches.
    """

    records: int
    seconds: float
    open_seconds: float
    cpu: float
    peak_mb: Mapping[str, float]
    disk_mb: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """The formula's prediction from two smaller runs."""

    seconds: float
    open_seconds: float

    @classmethod
    def of(cls, few: Measured, some: Measured, records: int) -> Predicted:
        """Extrapolate linearly from both runs to ``records``."""
        steps = (records - few.records) / (some.records - few.records)
        return cls(
            few.seconds + steps * (some.seconds - few.seconds),
            few.open_seconds + steps * (some.open_seconds - few.open_seconds),
        )


def scale(out: Path, records: int) -> int:
    """Measure, write ``scale.json``, print a line per run; return 1 for a wrong count."""
    some = min(SOME, records)
    sizes = {"few": FEW, "some": some, "many": records - records % some}
    report: dict[str, Any] = {}
    with benchmark_broker() as kafka, tempfile.TemporaryDirectory(prefix="airflow-eos-scale-") as disk:
        servers = kafka.bootstrap_servers
        for topic in (*sizes, *jobs.PROCESSES):
            kafka.create_topic(topic, partitions=PARTITIONS)
        spark = spark_session(peers=False, **{"spark.local.dir": disk})
        cluster = jobs.Cluster(spark, servers, 0)
        publish(servers, "few", FEW)
        publish(servers, "some", some)
        for _ in range(records // some):
            jobs.exactly_once(cluster, "many", jobs.transform_arrow, source_topics=("some",))
        expected: dict[str, int] = {}
        for name, process in jobs.PROCESSES.items():
            jobs.exactly_once(cluster, name, process, source_topics=("some",))  # warms up
            runs = {size: _measured(cluster, name, process, size, Path(disk)) for size in sizes}
            predicted = Predicted.of(runs["few"], runs["some"], sizes["many"])
            report[name] = {
                **{size: asdict(run) for size, run in runs.items()},
                "predicted": asdict(predicted),
            }
            expected[name] = some + sum(run.records for run in runs.values())
            print(f"scale: {name}: {_line(runs['many'], predicted)}", flush=True)
        spark.stop()
        written = {name: count_records(servers, name) for name in jobs.PROCESSES}
    (out / "scale.json").write_text(json.dumps(report, indent=2) + "\n")
    if written != expected:
        print(f"scale: records in the outputs: {written}, expected: {expected}", file=sys.stderr)
        return 1
    print(f"scale: {sum(written.values())} records in the outputs, as expected")
    return 0


def _measured(cluster: jobs.Cluster, sink: str, process: Any, source: str, disk: Path) -> Measured:
    with Watch(disk) as usage:
        record = jobs.exactly_once(cluster, sink, process, source_topics=(source,))
    stages = cluster.stages
    return Measured(
        record.records_written,
        stages["END"],
        stages["END"] - stages[State.OPEN.value],
        usage.cpu,
        {kind: round(mb) for kind, mb in usage.peak_mb.items()},
        round(usage.peak_disk_mb),
    )


def _line(run: Measured, predicted: Predicted) -> str:
    peaks = ", ".join(f"{kind} {mb:.0f}" for kind, mb in sorted(run.peak_mb.items()))
    return (
        f"{run.records} records in {run.seconds:.1f} s ({predicted.seconds:.1f} predicted), "
        f"the transaction open for {run.open_seconds:.1f} s ({predicted.open_seconds:.1f}), "
        f"{run.cpu:.0f} CPU s; peak MB: {peaks}, disk {run.disk_mb:.0f}"
    )
