#!/usr/bin/env python3
"""Run the tests on other versions of Python, Airflow, Spark and Kafka: ``python tools/matrix.py [CELL ...]``.

Each cell has an environment below ``.cache/matrix`` and differs from CI (``constraints.txt``) in one version.
Results are kept in ``docs/matrix.json``; ``docs/versions.md`` shows them, with cells that did not run. A
cell's environment is removed after its tests; ``--keep`` leaves it for the next call.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "matrix"
RESULTS, PAGE = ROOT / "docs" / "matrix.json", ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
NOT_RUN, NOT_BUILT = "not run", "not built"
SECONDS = 3600
"""Time-out of one group of tests."""

_FAST = ("-m", "not chaos and not jvm and not search")
GROUPS: dict[str, tuple[str, ...]] = {
    "units": ("tests/unit", *_FAST),
    "protocol": ("tests/protocol", *_FAST),
    "data plane": ("tests/integration/test_spark_data_plane.py", "tests/integration/test_local_session.py"),
    "a guarantee": ("tests/guarantees/test_delivery.py::test_one_transaction_is_exact_after_the_same_crash",),
    "a scheduler": ("tests/system/test_runs_under_a_scheduler.py",),
}
"""pytest's arguments by column of the table."""
WITHOUT_BROKER = ("units", "protocol")
"""Groups that start no broker: cells that differ only in Kafka leave them to :data:`CI_CELL`."""
CI_CELL = "python-3.11"
"""The cell that CI runs."""
SHOWN = {"Python": "", "Airflow": "apache-airflow-core", "PySpark": "pyspark", "pandas": "pandas"}
"""Version columns, and the distribution of each."""

WITHOUT_CLIENT = ("4.3",)
"""Spark versions without ``pyspark-client``: PySpark is installed alone, whatever a package requires."""
BOUNDED = ("pydantic", "pydantic-core", "svcs")
"""Packages whose newest release the lowest versions of others allow, but do not start with."""
BOUNDED_BY_OLDEST_AIRFLOW = "pyjwt<2.11"
"""Airflow 3.1.6 signs tokens without an issuer, which later releases refuse."""


@dataclass(frozen=True)
class Cell:
    """One combination of versions.

    :param python: interpreter.
    :param airflow: ``3.1`` uses ``constraints-airflow-3.1.txt``; empty: the version of ``constraints.txt``.
    :param spark: minor version; empty: the version of ``constraints.txt``.
    :param kafka: full version of the brokers; empty: the default of the test equipment.
    :param pins: ``constraints``; ``none``: newest versions; ``lowest``: lowest that pyproject.toml admits.
    """

    name: str
    python: str = "python3.11"
    airflow: str = ""
    spark: str = "4.2"
    kafka: str = ""
    pins: str = "constraints"


CELLS = (
    *(Cell(f"python-3.{minor}", python=f"python3.{minor}") for minor in range(10, 15)),
    *(Cell(f"airflow-{version}", airflow=version) for version in ("3.1", "3.2")),
    *(Cell(f"spark-{version}", spark=version) for version in ("4.0", "4.1", "4.3")),
    *(Cell(f"kafka-{version}", kafka=version) for version in ("3.6.2", "3.7.2", "3.9.2", "4.0.1", "4.4.0")),
    Cell("newest", pins="none", python="python3.13"),
    Cell("lowest", pins="lowest", python="python3.10", spark="4.0"),
)


def groups_of(cell: Cell) -> tuple[str, ...]:
    """Return the groups of tests that run in a cell."""
    return tuple(group for group in GROUPS if not (cell.kafka and group in WITHOUT_BROKER))


class NotBuilt(Exception):
    """The environment of a cell cannot be created; gives the reason in one line."""


@dataclass(frozen=True)
class Result:
    """The result of a cell.

    :param date: date of the run, ISO 8601; empty if it did not run.
    :param versions: versions by column.
    :param outcomes: by group, pytest's counts such as ``12 passed``, or why there are none.
    """

    date: str
    versions: Mapping[str, str]
    outcomes: Mapping[str, str]


def constraints(cell: Cell) -> str:
    """Return the pins of a cell: lines of constraints.txt, some replaced."""
    if cell.pins == "none":
        return ""
    if cell.pins == "lowest":  # the lowest Airflow is a 3.1
        lines = constraints(Cell(cell.name, airflow="3.1")).splitlines()
        bounds = [line for line in lines if line.partition("==")[0] in BOUNDED]
        return "\n".join([*bounds, BOUNDED_BY_OLDEST_AIRFLOW])
    own: list[str] = []
    if cell.airflow:
        own = (ROOT / f"constraints-airflow-{cell.airflow}.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in own if not line.startswith("#")}
    if not (ROOT / "constraints.txt").read_text().count(f"\npyspark=={cell.spark}."):
        names |= {"pyspark", "pyspark-client", "py4j"}  # the extra bounds them
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join([*own, *(line for line in pins if line.partition("==")[0] not in names), ""])


def overrides(cell: Cell) -> str:
    """Return replacements for packages' own requirements: lines for uv's ``--override``."""
    if cell.spark not in WITHOUT_CLIENT:
        return ""
    never = "python_version < '3'"
    return f"pyspark[connect]=={cell.spark}.*\npyspark-client ; {never}\n"


def build(cell: Cell, home: Path) -> Path:
    """Create the environment of a cell, or reuse that of ``make setup``, and return its interpreter.

    :raises NotBuilt: the interpreter is missing, or packages conflict.
    """
    if cell == Cell(cell.name, airflow=cell.airflow, kafka=cell.kafka):
        _call([str(ROOT / "tools" / "setup")], AIRFLOW=cell.airflow)
        return ROOT / f".venv{f'-airflow-{cell.airflow}' if cell.airflow else ''}" / "bin" / "python"
    if not _starts(cell.python):
        raise NotBuilt(f"{cell.python} was not installed")
    python, stamp = home / "bin" / "python", home / "made-from"
    pins, instead = constraints(cell), overrides(cell)
    projects = [(ROOT / name / "pyproject.toml").read_text() for name in (".", "testing")]
    made_from = "\n".join([str(cell), pins, instead, *projects])
    if stamp.exists() and stamp.read_text() == made_from:
        return python
    _call([cell.python, "-m", "venv", "--clear", str(home)])
    (home / "pins.txt").write_text(pins)
    install = [_uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    extras = ["iceberg", "delta", "postgres"]
    if instead:
        (home / "overrides.txt").write_text(instead)
        install += ["--override", str(home / "overrides.txt")]
    else:
        extras.append(f"pyspark{cell.spark.replace('.', '')}")
    wanted = [f".[{','.join(extras)}]", "./testing[platform]"]
    editable = [part for name in wanted for part in ("--editable", name)]
    if cell.pins == "lowest":  # test tools are the newest: they do not run together with Dags
        _call([*install, "--resolution", "lowest-direct", "--constraint", str(home / "pins.txt"), *editable])
        editable = []
    _call([*install, "--constraint", str(home / "pins.txt"), "--group", "dev", *editable])
    stamp.write_text(made_from)
    return python


def _uv() -> str:
    """Return uv's path, in an environment of its own: in a cell's, a dependency may replace it."""
    home = FOLDER / "uv"
    if not (home / "bin" / "uv").exists():
        _call([sys.executable, "-m", "venv", str(home)])
        _call([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    return str(home / "bin" / "uv")


def _starts(python: str) -> bool:
    """Return whether the interpreter starts; a version manager may have a shim without a version."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _call(command: list[str], **env: str) -> None:
    options: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, **env}, "timeout": SECONDS}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotBuilt(lines[-1][:200] if lines else f"{command[0]} ended with {done.returncode}")


def run(cell: Cell, group: str) -> Result:
    """Create or reuse the environment of a cell, run a group of tests in it, and return the result."""
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    try:
        python = build(cell, FOLDER / cell.name)
    except NotBuilt as reason:
        return Result(today, versions_asked(cell), {group: f"{NOT_BUILT}: {reason}"})
    return Result(today, versions_of(cell, python), {group: run_group(cell, python, group)})


def merged(before: Result, new: Result) -> Result:
    """Return a cell's result after another run: a group keeps its outcome until it runs again.

    Outcomes of other versions are dropped; if no environment could be created, earlier outcomes are kept.
    """
    if any(NOT_BUILT in outcome for outcome in new.outcomes.values()):
        if any(NOT_BUILT not in outcome for outcome in before.outcomes.values()):
            return before
    elif before.versions != new.versions:
        return new
    return replace(new, outcomes={**before.outcomes, **new.outcomes})


def run_group(cell: Cell, python: Path, group: str) -> str:
    """Run one group of tests and return pytest's count."""
    env = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "AIRFLOW_HOME": str(python.parent.parent / "airflow"),
    }
    if cell.kafka:
        env["EOS_KAFKA_VERSION"] = cell.kafka
    # The plugin of an old anyio does not load in a current pytest, and no test needs it.
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:anyio", *GROUPS[group]]
    if cell.spark in ("4.0", "4.1"):  # PySpark leaves the sockets of results to the garbage collector
        command += ["-W", "ignore:unclosed <socket:ResourceWarning"]
    log = FOLDER / f"{cell.name}-{group.replace(' ', '-')}.log"
    with log.open("w") as output:
        options: dict[str, Any] = {"cwd": ROOT, "env": env, "timeout": SECONDS}
        try:
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, **options)
        except subprocess.TimeoutExpired:
            return f"timed out after {SECONDS} s"
    return counted(log.read_text())


def counted(text: str) -> str:
    """Return the counts in pytest's output, as ``2 failed, 12 passed``, without skipped tests."""
    lines = re.findall(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", text, re.MULTILINE)
    if not lines:
        return "ended without a count"
    parts = re.findall(r"(\d+ (?:failed|passed|errors?))", lines[-1])
    return ", ".join(parts) or "no test ran"


def versions_asked(cell: Cell) -> dict[str, str]:
    """Return the versions that define a cell."""
    versions = {"Python": cell.python.removeprefix("python"), "Airflow": cell.airflow, "PySpark": cell.spark}
    return {**versions, "pandas": "", "Kafka": cell.kafka}


def versions_of(cell: Cell, python: Path) -> dict[str, str]:
    """Return the versions that are installed in an environment."""
    code = (
        "import json, sys, importlib.metadata as known\n"
        "print(json.dumps([name and known.version(name) or sys.version.split()[0] for name in sys.argv[1:]]))"
    )
    done = subprocess.run([python, "-c", code, *SHOWN.values()], check=True, capture_output=True, text=True)
    return {**dict(zip(SHOWN, json.loads(done.stdout), strict=True)), "Kafka": cell.kafka or "default"}


def load() -> dict[str, Result]:
    """Return the stored results by cell; a cell without one was not run."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    unknown = {"date": "", "outcomes": {}}
    return {
        cell.name: Result(**stored.get(cell.name, {**unknown, "versions": versions_asked(cell)}))
        for cell in CELLS
    }


def render(results: Mapping[str, Result]) -> str:
    """Return the table."""
    head = ["cell", *SHOWN, "Kafka", *GROUPS, "date"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    by_name = {cell.name: cell for cell in CELLS}
    for name, result in results.items():
        versions = [result.versions.get(column) or "as pinned" for column in (*SHOWN, "Kafka")]
        own = groups_of(by_name.get(name, Cell(name)))
        outcomes = [
            _shown(result.outcomes.get(group, NOT_RUN)) if group in own else f"as {CI_CELL}"
            for group in GROUPS
        ]
        lines.append(f"| {' | '.join([name, *versions, *outcomes, result.date or NOT_RUN])} |")
    return "\n".join(lines)


def _shown(outcome: str) -> str:
    """Return the text of a cell: only the number if every test passed."""
    return re.sub(r"^(\d+) passed$", r"\1", outcome)


def with_table(page: str, table: str) -> str:
    """Return the page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run groups of tests in cells, and write results and page after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cell", nargs="*", metavar="CELL", help=", ".join(cell.name for cell in CELLS))
    parser.add_argument("--group", action="append", choices=[*GROUPS], help="repeatable; default: all")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    options = parser.parse_args()
    unknown = {*options.cell} - {cell.name for cell in CELLS}
    if unknown:
        parser.error(f"there is no cell {', '.join(sorted(unknown))}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for cell in CELLS:
        if options.cell and cell.name not in options.cell:
            continue
        for group in groups_of(cell):
            if options.group and group not in options.group:
                continue
            print(f"{cell.name}, {group} ...", file=sys.stderr, flush=True)
            new = run(cell, group)
            results = load()  # another call may have written meanwhile
            results[cell.name] = merged(results[cell.name], new)
            ran = {name: vars(result) for name, result in results.items() if result.date}
            RESULTS.write_text(json.dumps(ran, indent=1) + "\n")
            PAGE.write_text(with_table(PAGE.read_text(), render(results)))
            print(f"{cell.name}, {group}: {new.outcomes[group]}", file=sys.stderr, flush=True)
        if not options.keep:
            shutil.rmtree(FOLDER / cell.name, ignore_errors=True)


if __name__ == "__main__":
    main()
