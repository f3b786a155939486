"""Short forms of the benchmarks: they run, report their measurements and count the output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from airflow_eos_testing import count_records
from benchmarks import fresh, records

ROOT = Path(__file__).resolve().parents[2]
CLOSING = r"bench: dataframe \d+\.\d\d, arrow \d+\.\d\d of tuned at-least-once Spark \(median of 1 rounds\)"


def benchmark(out, *arguments):
    """Run ``python -m benchmarks`` to its end, with reports in ``out``; print its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,  # separately: Spark's Python daemon may print after the last line
        text=True,
        check=False,
        timeout=560,
    )
    print(done.stderr)
    return done


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_the_comparison_runs_every_contender_and_reports(tmp_path, monkeypatch):
    """All contenders run; the outputs are counted; JSON, chart and last line agree."""
    monkeypatch.setenv("WARM_UPS", "0")
    done = benchmark(tmp_path, "--records", "20000", "--rounds", "1")
    assert done.returncode == 0, done.stdout[-5_000:]
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(CLOSING, last)

    report = json.loads((tmp_path / "compare.json").read_text())
    assert f"arrow {report['ratios']['arrow']['seconds']:.2f} " in last
    assert len(report["contenders"]) == 9
    for figures in report["contenders"].values():
        assert figures["median_seconds"] > 0
        assert figures["records_per_second"] == pytest.approx(20_000 / figures["median_seconds"])
    for path in ("dataframe", "arrow"):
        assert 0 < report["transaction_open"][path] < 1
        assert sum(report["shares"][path].values()) == pytest.approx(1, abs=0.01)

    chart = ET.parse(tmp_path / "compare.svg").getroot()
    drawn = {text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert set(report["contenders"]) <= drawn


@pytest.mark.timeout(600)
def test_the_way_of_a_small_run_stays_within_its_bounds(tmp_path):
    """Bounds the driver's calls and requests for a small run: a change that adds some fails here."""
    bounds = {
        "functions": 423,
        "modules": 81,
        "package_changes": 204,
        "commit_frames": 10,
        "describe_topics": 4,
    }
    # Each check for the end of the transaction sends five; brokers take different times to write markers.
    requests = 45 + 2 * 5
    done = benchmark(tmp_path, "way")
    assert done.returncode == 0, done.stdout[-5_000:]
    report = json.loads((tmp_path / "way.json").read_text())
    run, empty = report["small run"], report["empty run"]
    assert {name: count for name, count in run.items() if name in bounds and count > bounds[name]} == {}
    assert 0 < sum(empty["requests"].values()) < sum(run["requests"].values()) <= requests
    assert all(0 < empty[name] <= run[name] for name in bounds)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_the_curves_are_measured_and_drawn(tmp_path):
    """Every point of every curve has its seconds; outputs are counted; JSON and chart agree."""
    done = benchmark(tmp_path, "curves", "--records", "300", "--rounds", "1", "--most", "10")
    assert done.returncode == 0, done.stdout[-5_000:]
    assert done.stdout.splitlines()[-1].startswith(
        "curves: the last point takes, of the first: source partitions "
    )
    seconds = json.loads((tmp_path / "curves.json").read_text())["seconds"]
    points = {curve: sorted(map(int, values)) for curve, values in seconds.items()}
    assert points == {
        "source partitions": [1, 10],
        "source partitions, no records": [1, 10],
        "target partitions": [1, 10],
        "source partitions, 5 target partitions for 2": [1],
        "pipelines in one ledger, no records": [1, 10],
        "runs at once, no records": [1, 2, 4, 8],
    }
    assert all(len(times) == 1 and times[0] > 0 for values in seconds.values() for times in values.values())
    chart = ET.parse(tmp_path / "curves.svg").getroot()
    drawn = {text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert set(seconds) <= drawn


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_the_pages_are_right_and_measured(tmp_path, monkeypatch):
    """Each page and its JSON twin are right, after more runs than are drawn one by one."""
    monkeypatch.setenv("RUNS", "400")
    done = benchmark(tmp_path, "page", "--rounds", "1")
    assert done.returncode == 0, done.stdout[-5_000:]
    report = json.loads((tmp_path / "page.json").read_text())
    assert (report["runs"], report["wrong"]) == (400, [])
    names = ("health", "pipelines", "pipeline", "newest run", "oldest run", "transactions")
    assert sorted(report["seconds"]) == sorted(name + twin for name in names for twin in ("", ", JSON"))
    assert all(len(times) == 1 and times[0] > 0 for times in report["seconds"].values())


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_run_is_spread_over_executors_of_each_cluster(tmp_path):
    """Four executors of a standalone cluster and of YARN: all have run tasks, and each output is whole."""
    done = benchmark(tmp_path, "executors", "--records", "20000", "--rounds", "1")
    assert done.returncode == 0, done.stdout[-5_000:]
    cases = json.loads((tmp_path / "executors.json").read_text())["cases"]
    used = {
        case: {path: figures["executors"] for path, figures in paths.items()} for case, paths in cases.items()
    }
    assert used == {
        case: {"DataFrame": number, "Arrow": number}
        for case, number in (
            ("local[2] 0", 0),
            ("standalone 1", 1),
            ("standalone 2", 2),
            ("standalone 4", 4),
            ("yarn 4", 4),
        )
    }


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["clients", "streams", "flink"])
def test_the_java_peers_copy_everything_once_per_job(embedded_kafka, kafka_topic, kind):
    """A reader of committed records counts what the peers write: the benchmark compares commits."""
    source, sink = kafka_topic(partitions=4), kafka_topic(partitions=4)
    records.publish(embedded_kafka.bootstrap_servers, source, 2_000)
    times = fresh.measure(fresh.command(kind), embedded_kafka.bootstrap_servers, source, sink, 2_000, jobs=2)
    assert count_records(embedded_kafka.bootstrap_servers, sink) == 4_000
    assert times["first"] > 0 < times["second"]
    assert times["cpu_first"] > 0


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_tables_are_written_counted_and_compared(tmp_path, monkeypatch):
    """Both process functions and Spark's own job to Parquet, and a task's memory by file size."""
    monkeypatch.setenv("WARM_UPS", "0")
    done = benchmark(tmp_path, "tables", "--records", "20000", "--rounds", "1")
    assert done.returncode == 0, done.stdout[-5_000:]
    report = json.loads((tmp_path / "tables.json").read_text())
    assert len(report["contenders"]) == 3
    last = done.stdout.splitlines()[-1]
    assert f"tables: dataframe {report['ratios']['dataframe']['seconds']:.2f}, arrow " in last
    for peaks in report["peak_mb_by_file_size"].values():
        assert peaks["worker"] > 0
