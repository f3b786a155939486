from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_eos

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("pyspark", "pyarrow", "confluent_kafka", "kafka", "pandas", "numpy")


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has after running the code."""
    script = f"{code}\nimport sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_operator_module_loads_no_spark_arrow_or_kafka() -> None:
    """What a Dag file imports stays cheap at every parse."""
    loaded = loaded_by(
        "from airflow_eos import ReadProcessWriteOperator, Cursor, Interval, Explicit, LedgerSettings"
    )
    assert "airflow" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("kind", ["sensors", "triggers"])
def test_sensors_and_triggers_load_no_spark_arrow_or_kafka(kind: str) -> None:
    """Dag files import sensors, and triggers for their asset watchers."""
    folder = ROOT / "airflow_eos" / kind
    modules = sorted(f"airflow_eos.{kind}.{file.stem}" for file in folder.glob("[a-z]*.py"))
    loaded = loaded_by(f"import {', '.join(modules)}")
    assert "airflow" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("file", sorted((ROOT / "dags").glob("*.py")), ids=lambda path: path.name)
def test_example_dag_parses_without_spark_arrow_or_kafka(file: Path) -> None:
    """Every example Dag is as light as the operator."""
    loaded = loaded_by(f"import runpy; runpy.run_path({str(file)!r})")
    assert "airflow" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("file", sorted((ROOT / "dags").glob("*.py")), ids=lambda path: path.name)
def test_example_dag_parses_in_under_a_second(file: Path) -> None:
    """The Dag processor, which has Airflow loaded, parses every file again and again."""
    script = (
        "import time, runpy, airflow.sdk, airflow.models\n"
        f"began = time.perf_counter(); runpy.run_path({str(file)!r}); print(time.perf_counter() - began)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert float(done.stdout.splitlines()[-1]) < 1.0


def test_package_itself_loads_neither_airflow_nor_anything_heavy() -> None:
    """An executor imports the package for its version without paying for more."""
    assert not loaded_by("import airflow_eos").intersection({"airflow", *HEAVY})


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
