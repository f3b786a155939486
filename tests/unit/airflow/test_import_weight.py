from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_eos

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("pyspark", "pyarrow", "confluent_kafka", "kafka", "pandas", "numpy")


def loaded_by(*steps: str) -> list[set[str]]:
    """Top-level packages that a fresh interpreter has after each step of the code."""
    tell = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(f"{step}\n{tell}" for step in steps)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_operators_sensors_and_triggers_load_no_spark_arrow_or_kafka() -> None:
    """What a Dag file imports stays cheap at every parse, triggers for its asset watchers, too."""
    operators = "from airflow_eos import ReadProcessWriteOperator, Cursor, Interval, Explicit, LedgerSettings"
    modules = sorted(
        f"airflow_eos.{kind}.{file.stem}"
        for kind in ("sensors", "triggers")
        for file in (ROOT / "airflow_eos" / kind).glob("[a-z]*.py")
    )
    for loaded in loaded_by(operators, f"import {', '.join(modules)}"):
        assert "airflow" in loaded
        assert not loaded.intersection(HEAVY)


@pytest.fixture(scope="module")
def parsed() -> dict[str, tuple[float, set[str]]]:
    """CPU seconds to parse each example Dag where Airflow is loaded, and the packages loaded then."""
    script = (
        "import json, runpy, sys, time, airflow.sdk, airflow.models\n"
        "for file in sys.argv[1:]:\n"
        "    began = time.process_time(); runpy.run_path(file); seconds = time.process_time() - began\n"
        "    print('PARSED', json.dumps([file, seconds, sorted({m.partition('.')[0] for m in sys.modules})]))"
    )
    files = sorted(map(str, (ROOT / "dags").glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-c", script, *files],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    found = [json.loads(line.removeprefix("PARSED ")) for line in lines]
    return {Path(file).name: (seconds, set(loaded)) for file, seconds, loaded in found}


DAG_FILES = sorted(file.name for file in (ROOT / "dags").glob("*.py"))


@pytest.mark.parametrize("name", DAG_FILES)
def test_example_dag_parses_without_spark_arrow_or_kafka(
    parsed: dict[str, tuple[float, set[str]]], name: str
) -> None:
    """Every example Dag is as light as the operator."""
    assert not parsed[name][1].intersection(HEAVY)


@pytest.mark.parametrize("name", DAG_FILES)
def test_example_dag_parses_in_under_a_second(parsed: dict[str, tuple[float, set[str]]], name: str) -> None:
    """The Dag processor, which has Airflow loaded, parses every file again and again."""
    assert parsed[name][0] < 1.0


def test_package_itself_loads_neither_airflow_nor_anything_heavy() -> None:
    """An executor imports the package for its version without paying for more."""
    (loaded,) = loaded_by("import airflow_eos")
    assert not loaded.intersection({"airflow", *HEAVY})


def test_public_names_are_sorted_and_each_can_be_had() -> None:
    """__all__ is the whole public surface, in order, with nothing that does not exist."""
    names = airflow_eos.__all__
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert dir(airflow_eos) == names
    for name in names:
        assert getattr(airflow_eos, name) is not None, name


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt import says so."""
    with pytest.raises(AttributeError, match="Operater"):
        _ = airflow_eos.ReadProcessWriteOperater  # type: ignore[attr-defined]
