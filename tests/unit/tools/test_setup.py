"""tools/setup: which interpreter the environment has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PINNED = ("pyproject.toml", "testing/pyproject.toml", "testing/same_version.py", "constraints.txt")
OTHER_PYTHON = """#!/bin/sh
case "$*" in
*version_info\\[:2\\]*) echo 3.99 ;;
*"-m venv"*) exit 1 ;;
esac
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment has this Python; on PATH are Java and a ``python3`` of another version."""
    for name in ("tools/setup", *PINNED):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    content = b"".join((tmp_path / name).read_bytes() for name in PINNED)
    checksum = subprocess.run(["cksum"], input=content, capture_output=True, check=True).stdout.decode()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / ".venv/.airflow-eos-setup").write_text(f"{tmp_path} {version} {checksum}")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program(tmp_path / "bin/python3", OTHER_PYTHON)
    return tmp_path


def set_up(checkout: Path, **env: str) -> int:
    unset = ("JAVA_HOME", "PYTHON", "AIRFLOW")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run([checkout / "tools/setup"], env={**kept, "PATH": path, **env}, check=False)
    return done.returncode


@pytest.mark.process
def test_an_environment_keeps_its_interpreter(checkout: Path) -> None:
    """``PYTHON=python3.12 make setup`` chooses it once; every other target calls set-up without."""
    for env in ({}, {"PYTHON": ""}):
        assert set_up(checkout, **env) == 0
        assert (checkout / ".venv").exists()


def test_another_interpreter_that_is_named_makes_the_environment_again(checkout: Path) -> None:
    """Counter-test."""
    assert set_up(checkout, PYTHON="python3") == 1
    assert not (checkout / ".venv").exists()


def test_make_names_an_interpreter_only_where_the_user_does() -> None:
    """Make's own default would count as one that the user named."""
    assert "\nPYTHON ?=\n" in (ROOT / "Makefile").read_text()
