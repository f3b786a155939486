"""The comparison benchmark in short form: it measures what it says and counts what was written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLOSING = r"bench: dataframe \d+\.\d\d, arrow \d+\.\d\d of tuned at-least-once Spark \(median of 1 rounds\)"


@pytest.mark.timeout(600)
def test_the_comparison_runs_every_contender_and_reports(tmp_path):
    """All contenders in one run; the outputs are counted; JSON, chart and closing line say the same."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--records",
        "20000",
        "--rounds",
        "1",
        "--cold-rounds",
        "0",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=560,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(CLOSING, last)

    report = json.loads((tmp_path / "compare.json").read_text())
    assert f"arrow {report['ratios']['arrow']['seconds']:.2f} " in last
    assert len(report["contenders"]) == 9
    for found in report["contenders"].values():
        assert found["median_seconds"] > 0
        assert found["records_per_second"] == pytest.approx(20_000 / found["median_seconds"])
    for path in ("dataframe", "arrow"):
        assert 0 < report["transaction_open"][path] < 1
        assert sum(report["shares"][path].values()) == pytest.approx(1, abs=0.01)

    chart = ET.parse(tmp_path / "compare.svg").getroot()
    drawn = {text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert set(report["contenders"]) <= drawn
