"""The wheel, as a user gets it: into an empty environment, found by Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **kwargs):
    """Run a command; a failure shows what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **kwargs)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(900)
def test_the_wheel_alone_makes_an_airflow_that_lists_the_provider(tmp_path):
    """What the wheel declares suffices: nothing of the checkout or of its environment is used."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    run(*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel), cwd=tmp_path)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON"))}
    env = {**inherited, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    airflow = str(tmp_path / "venv" / "bin" / "airflow")
    listed = json.loads(run(airflow, "providers", "list", "--output", "json", cwd=tmp_path, env=env))
    assert "airflow-eos" in [provider["package_name"] for provider in listed]
    assert "reset-offsets" in run(airflow, "eos", "--help", cwd=tmp_path, env=env)
    code = "from airflow.sdk import task; print(task.kafka_eos.__name__)"
    assert run(python, "-c", code, cwd=tmp_path, env=env).split()[-1] == "kafka_eos_task"
    code = "import airflow_eos; print(airflow_eos.ReadProcessWriteOperator.__name__)"
    assert run(python, "-c", code, cwd=tmp_path, env=env).split()[-1] == "ReadProcessWriteOperator"
