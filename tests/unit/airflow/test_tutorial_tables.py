"""The tables tutorial: steps that need neither broker nor Spark work as on the page."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tools.try_getting_started import block

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tutorial-tables.md").read_text()


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a terminal with the connection exported, in a folder with the programs."""
    for name in ("create_table.py", "hold.py", "query.py"):
        (tmp_path / name).write_text(block(PAGE, "python", f"# {name}"))
    export = f"cd {tmp_path}\n{block(PAGE, 'console', 'mkdir -p lake')}env -0"
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    done = subprocess.run(["bash", "-ec", export], env=given, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


ONE_AFTER_THE_OTHER = """
import runpy, sys
for name in sys.argv[1:]:
    runpy.run_path(name, run_name="__main__")
"""


def run(shell: dict[str, str], folder: Path, *names: str) -> list[str]:
    """Run programs, which share the import of Airflow; return each one's output."""
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, *names]
    done = subprocess.run(command, cwd=folder, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "[warning" not in line and "[info" not in line]


def lock(folder: Path, timeout: float) -> None:
    """Take the write lock of the catalog's database, and release it."""
    with closing(sqlite3.connect(folder / "lake" / "catalog.db", timeout=timeout)) as connection:
        connection.execute("begin immediate")


@pytest.mark.process
def test_the_programs_of_the_page_work(shell: dict[str, str], tmp_path: Path) -> None:
    """The table exists, the query finds no rows yet, and the programs release the catalog."""
    created, queried = run(shell, tmp_path, "create_table.py", "query.py")
    assert "has the columns item, price, ordered_at" in created
    assert queried == "[(0, 0, 0, None)]"

    held = subprocess.Popen(
        [sys.executable, "hold.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.stdin is not None
    assert held.stdout is not None
    try:
        assert held.stdout.read(len("Commits wait")) == "Commits wait"
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            lock(tmp_path, timeout=0.1)
        held.stdin.write("\n")
        held.stdin.flush()
        assert held.wait(60) == 0
    finally:
        held.kill()
        held.communicate()
    lock(tmp_path, timeout=30)


def test_the_page_says_what_the_query_prints() -> None:
    """Of the three days of orders that getting started publishes."""
    orders = [minute % 200 for minute in range(3 * 24 * 60)]
    shown = (len(orders), len(orders), len(orders), float(sum(orders)))
    assert f"```text\n{[shown]}\n```" in PAGE
    started = (Path(__file__).resolve().parents[3] / "docs" / "getting-started.md").read_text()
    assert "for minute in range(3 * 24 * 60)" in started
    assert '"price": minute % 200' in started
