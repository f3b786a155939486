"""The demo, as ``make demo`` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000

pytestmark = pytest.mark.timeout(900)


def demo(*arguments: str) -> str:
    """Run the demo to its end, check its last line, and return the rest of its output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "demo", "--records", str(RECORDS), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text, _, last = done.stdout.rstrip().rpartition("\n")
    assert last == f"demo: {RECORDS} records in, {RECORDS} records out, 0 lost, 0 duplicated"
    assert "answered from the ledger: yes" in text, done.stdout + done.stderr
    return text


def test_the_demo_kills_a_run_half_way_and_ends_exact():
    """The first try dies with its transaction half written; nothing is lost or duplicated."""
    demo()


def test_an_airflow_that_does_not_have_what_the_example_dags_import_is_refused(monkeypatch, capsys):
    """It is refused in one line, before anything starts."""
    monkeypatch.setattr("demo.__main__.AIRFLOW_VERSION", (3, 1))
    monkeypatch.setattr("sys.argv", ["demo"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith("timetables that Airflow has from 3.2 on\n")


@pytest.mark.chaos
def test_the_demo_with_a_table_kills_a_run_between_two_commits_and_ends_exact(tmp_path):
    """The retry adopts the rows of the dead try; the query that the demo prints at its end works."""
    text = demo("--sink", "iceberg")
    assert f"rows in the table: {RECORDS:,}" in text
    assert "the retry adopted the snapshot of the dead try" in text
    *_, program = text.partition("from pyiceberg.catalog")
    program = "".join(line.strip() + "\n" for line in f"from pyiceberg.catalog{program}".splitlines())
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "JFK" in answer.stdout
