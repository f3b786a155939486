"""The demo, as ``make demo`` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000


@pytest.mark.timeout(900)
def test_the_demo_kills_a_run_half_way_and_ends_exact():
    """The first try dies with its transaction half written; nothing is lost or duplicated."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "demo", "--records", str(RECORDS)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    *_, last = done.stdout.splitlines()
    assert last == f"demo: {RECORDS} records in, {RECORDS} records out, 0 lost, 0 duplicated"
    assert "answered from the ledger: yes" in done.stdout, said
