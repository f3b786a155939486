"""Runs into an Iceberg table, compared with Spark's own batch job that writes the same rows to Parquet.

That job reads with Spark's Kafka source, tuned as in the other comparisons, and appends files to a folder: at
least once, without a table. The memory of a run into a table is measured for several file sizes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos import IcebergTable, arrow_process
from benchmarks import jobs
from benchmarks.broker import benchmark_broker
from benchmarks.contenders import ARROW, FRAME
from benchmarks.records import PARTITIONS, publish
from benchmarks.rounds import WARM_UPS, Series, ratio, run_rounds, shares
from benchmarks.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

PARQUET = "Spark's own job to Parquet, tuned at the source"
FILE_MEGABYTES = (8, 32, 128)
"""Values of ``write.target-file-size-bytes``: 128 is the most that a task buffers, and the default."""


def rows(frame: DataFrame) -> DataFrame:
    """Return key, value, partition, offset and timestamp as the columns of the table."""
    return frame.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "partition", "offset", "timestamp"
    )


@arrow_process
def rows_arrow(batch: Any) -> Any:
    """Return the same columns as :func:`rows`, on Arrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: pc.cast(batch[name], pa.string()) for name in ("key", "value")}
    return pa.table({**columns, **{name: batch[name] for name in ("partition", "offset", "timestamp")}})


def tables(records: int, rounds: int, out: Path) -> int:
    """Measure, write ``tables.json``, print a summary; return 1 for a wrong count."""
    with benchmark_broker() as kafka, tempfile.TemporaryDirectory(prefix="airflow-eos-lake-") as temporary:
        folder = Path(temporary)
        servers = kafka.bootstrap_servers
        kafka.create_topic(jobs.SOURCE, partitions=PARTITIONS)
        print(f"publishing {records} records ...", flush=True)
        megabytes = publish(servers, jobs.SOURCE, records) / 1e6
        cluster = jobs.Cluster(spark_session(), servers, records)
        properties = _properties(folder)
        catalog = _catalog(properties)

        def into(name: str, process: Any) -> dict[str, float]:
            sink = IcebergTable(f"bench.{name}", properties=properties)
            jobs.exactly_once(cluster, None, process, sink=sink)
            return cluster.stages

        contenders: dict[str, Callable[[], Any]] = {
            PARQUET: partial(_to_parquet, cluster, folder / "parquet"),
            FRAME: partial(into, "frame", rows),
            ARROW: partial(into, "arrow", rows_arrow),
        }
        for name in ("frame", "arrow"):
            _create(catalog, name, FILE_MEGABYTES[-1])
        series = run_rounds(contenders, rounds)
        memory: dict[str, Callable[[], Any]] = {}
        for size in FILE_MEGABYTES:
            _create(catalog, f"arrow_{size}", size)
            memory[f"Arrow, files of {size} MB of rows"] = partial(into, f"arrow_{size}", rows_arrow)
        of_sizes = run_rounds(memory, 1)
        expected = dict.fromkeys((PARQUET, "frame", "arrow"), records * (WARM_UPS + rounds))
        written = {
            PARQUET: cluster.spark.read.parquet(str(folder / "parquet")).count(),
            **{name: catalog.load_table(f"bench.{name}").scan().count() for name in ("frame", "arrow")},
        }
        cluster.spark.stop()
    if written != expected:
        print(f"tables: {written} rows, {expected} expected", file=sys.stderr)
        return 1
    report = _report(series, of_sizes, records, rounds, megabytes)
    (out / "tables.json").write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    return 0


def _to_parquet(cluster: jobs.Cluster, folder: Path) -> None:
    source = jobs.kafka_source(cluster, jobs.TUNED.source)
    writer = rows(source).write.mode("append").option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", "1").parquet(str(folder))


def _properties(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=60",
        "warehouse": f"file://{folder}/warehouse",
    }


def _catalog(properties: dict[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("iceberg_default", **properties)
    catalog.create_namespace("bench")
    return catalog


def _create(catalog: Catalog, name: str, megabytes: int) -> None:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    columns = {"key": text, "value": text, "partition": pa.int32(), "offset": number}
    schema = pa.schema([*columns.items(), ("timestamp", pa.timestamp("us", "UTC"))])
    size = str(megabytes << 20)
    catalog.create_table(f"bench.{name}", schema, properties={"write.target-file-size-bytes": size})


def _report(
    series: dict[str, Series], of_sizes: dict[str, Series], records: int, rounds: int, megabytes: float
) -> dict[str, Any]:
    return {
        "records": records,
        "rounds": rounds,
        "partitions": PARTITIONS,
        "megabytes": round(megabytes, 1),
        "contenders": {name: times.summary(records, megabytes) for name, times in series.items()},
        "ratios": {
            short: {
                "seconds": ratio(series[name].seconds, series[PARQUET].seconds),
                "cpu": ratio(series[name].cpu, series[PARQUET].cpu),
            }
            for short, name in (("dataframe", FRAME), ("arrow", ARROW))
        },
        "shares": {name: shares(series[name].stages) for name in (FRAME, ARROW)},
        "peak_mb_by_file_size": {name: times.peak_mb for name, times in of_sizes.items()},
    }


def _print(report: dict[str, Any]) -> None:
    for name, times in report["contenders"].items():
        print(
            f"{name:48} {times['median_seconds']:6.2f} s {times['median_cpu_seconds']:7.2f} CPU s "
            f"{times['records_per_second']:11,.0f} records/s {times['mb_per_second']:6.1f} MB/s"
        )
    for name, state_shares in report["shares"].items():
        print(f"{name}: {', '.join(f'{state} {share:.0%}' for state, share in state_shares.items())}")
    for name, peaks in report["peak_mb_by_file_size"].items():
        print(f"{name}: peak MB {', '.join(f'{kind} {peak:.0f}' for kind, peak in sorted(peaks.items()))}")
    ratios = report["ratios"]
    print(
        f"tables: dataframe {ratios['dataframe']['seconds']:.2f}, arrow {ratios['arrow']['seconds']:.2f} of "
        f"{PARQUET} (median of {report['rounds']} rounds)"
    )
