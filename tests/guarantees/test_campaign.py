"""The campaign's short form: real faults at a fixed set of states, one oracle."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LAST = r"chaos: (\d+) runs, (\d+) faults, (\d+) records in, (\d+) records out, 0 lost, 0 duplicated"


@pytest.mark.timeout(600)
def test_faults_at_every_kind_of_state_lose_nothing_and_duplicate_nothing() -> None:
    """SIGKILL, SIGSTOP and lost answers under constant input: the output has every input exactly once."""
    command = [sys.executable, "-m", "chaos", "--short", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    output = done.stdout + done.stderr[-4000:]
    assert done.returncode == 0, output
    last = re.fullmatch(_LAST, done.stdout.splitlines()[-1])
    assert last is not None, output
    runs, faults, records_in, records_out = map(int, last.groups())
    assert records_in == records_out >= 20_000
    assert faults >= 9
    assert runs > faults
