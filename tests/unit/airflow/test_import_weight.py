from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_eos

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("pyspark", "pyarrow", "confluent_kafka", "kafka", "pandas", "numpy")


def output_of(script: str, *arguments: str) -> list[str]:
    """Return the lines that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loaded_by(*steps: str) -> list[set[str]]:
    """Return the top-level packages that a fresh interpreter has loaded after each step."""
    tell = "import sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    lines = output_of("\n".join(f"{step}\n{tell}" for step in steps))
    return [{*line.split()[1:]} for line in lines if line.startswith("LOADED ")]


SENSORS_AND_TRIGGERS = sorted(
    f"airflow_eos.{kind}.{file.stem}"
    for kind in ("sensors", "triggers")
    for file in (ROOT / "airflow_eos" / kind).glob("[a-z]*.py")
)
STEPS = {
    "plugin": "import os; os.environ['AIRFLOW__EOS__UI_KAFKA_CONFIG_ID'] = 'eos_page'; "
    "from airflow_eos.ui.plugin import EosPlugin; assert EosPlugin().external_views",
    "commands": "from airflow_eos.cli.airflow_commands import get_eos_cli_commands as g; g()",
    "operators": "from airflow_eos import ReadProcessWriteOperator, Cursor, Interval, Explicit",
    "sensors and triggers": f"import {', '.join(SENSORS_AND_TRIGGERS)}",
    "pages": "EosPlugin().fastapi_apps",
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Packages loaded by the steps, one after the other: one that is missing at the end is never loaded."""
    return dict(zip(STEPS, loaded_by(*STEPS.values()), strict=True))


@pytest.mark.parametrize("step", ["operators", "sensors and triggers"])
def test_operators_sensors_and_triggers_load_no_spark_arrow_or_kafka(
    loaded: dict[str, set[str]], step: str
) -> None:
    """The imports of a Dag file stay cheap at every parse, also those of triggers for asset watchers."""
    assert "airflow" in loaded[step]
    assert not loaded[step].intersection(HEAVY)


def test_registering_costs_the_airflow_command_line_nothing(loaded: dict[str, set[str]]) -> None:
    """Every `airflow` command imports this: no Spark, Arrow or Kafka client."""
    assert not loaded["commands"].intersection(HEAVY)


def test_what_every_process_of_airflow_imports_is_light(loaded: dict[str, set[str]]) -> None:
    """Scheduler, workers and triggerer load plugins without a web framework, Kafka or Arrow."""
    assert "airflow_eos" in loaded["plugin"]
    assert not loaded["plugin"].intersection({*HEAVY, "fastapi", "starlette"})
    assert {"fastapi", "jinja2", "kafka"} <= loaded["pages"]


@pytest.fixture(scope="module")
def parsed() -> dict[str, tuple[float, set[str]]]:
    """CPU seconds to parse each example Dag with Airflow loaded, and the packages loaded by it."""
    script = (
        "import json, runpy, sys, time, airflow.sdk, airflow.models\n"
        "for file in sys.argv[1:]:\n"
        "    began = time.process_time(); runpy.run_path(file); seconds = time.process_time() - began\n"
        "    print('PARSED', json.dumps([file, seconds, sorted({m.partition('.')[0] for m in sys.modules})]))"
    )
    lines = output_of(script, *sorted(map(str, (ROOT / "dags").glob("*.py"))))
    measurements = [json.loads(line.removeprefix("PARSED ")) for line in lines if line.startswith("PARSED ")]
    return {Path(file).name: (seconds, set(packages)) for file, seconds, packages in measurements}


DAG_FILES = sorted(file.name for file in (ROOT / "dags").glob("*.py"))


@pytest.mark.parametrize("name", DAG_FILES)
def test_example_dag_parses_without_spark_arrow_or_kafka(
    parsed: dict[str, tuple[float, set[str]]], name: str
) -> None:
    """Every example Dag is as light as the operator."""
    assert not parsed[name][1].intersection(HEAVY)


@pytest.mark.parametrize("name", DAG_FILES)
def test_example_dag_parses_in_under_a_second(parsed: dict[str, tuple[float, set[str]]], name: str) -> None:
    """The Dag processor, with Airflow loaded, parses every file again and again."""
    assert parsed[name][0] < 1.0


def test_the_package_and_its_command_load_no_airflow() -> None:
    """An executor imports the package for its version at no other cost, and so does the parser."""
    package, parser = loaded_by(
        "import airflow_eos", "import airflow_eos.cli.main; airflow_eos.cli.main.parser()"
    )
    assert not package.intersection({"airflow", *HEAVY})
    assert "airflow" not in parser


def test_public_names_are_sorted_and_each_can_be_had() -> None:
    """__all__ is the complete public interface, in order, and every name exists."""
    names = airflow_eos.__all__
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert dir(airflow_eos) == names
    for name in names:
        assert getattr(airflow_eos, name) is not None, name


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt import raises it."""
    with pytest.raises(AttributeError, match="Operater"):
        _ = airflow_eos.ReadProcessWriteOperater  # type: ignore[attr-defined]


def test_commands_of_spark_need_no_kafka_client_and_the_others_say_that_it_is_missing() -> None:
    """A library that cannot be loaded is an error as others: one document, exit code 1."""
    script = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from airflow_eos.cli.main import main; assert main(sys.argv[1:]) == 1"
    )
    errors = {"warm-spark": "ConfigurationError", "init": "ModuleNotFoundError"}
    for command, error in errors.items():
        cluster = () if command == "warm-spark" else ("--bootstrap-servers", "nowhere:1")
        lines = output_of(script, command, *cluster, "--output", "json")
        assert json.loads("".join(lines))["error"]["type"] == error
