"""The table of versions shows what ran, and never shows other cells as green."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from airflow_eos.spark.distributions import LINES_WITHOUT_CLIENT
from tools import matrix
from tools.matrix import CELLS, GROUPS, NOT_RUN, PAGE, Cell, Result


def test_the_page_shows_the_stored_results() -> None:
    assert PAGE.read_text() == matrix.with_table(PAGE.read_text(), matrix.render(matrix.load()))


def test_a_cell_that_was_not_run_says_so_in_each_column() -> None:
    (row,) = matrix.render({"x": Result("", {"Python": "3.15"}, {})}).splitlines()[2:]
    assert row.count(NOT_RUN) == len(GROUPS) + 1
    assert "passed" not in row


def test_a_group_that_was_not_run_is_not_green() -> None:
    row = matrix.render({"x": Result("2026-11-26", {}, {"units": "12 passed"})}).splitlines()[2]
    assert row.count(NOT_RUN) == len(GROUPS) - 1


def test_a_cell_of_another_kafka_leaves_what_starts_no_broker_to_the_cell_of_ci() -> None:
    kafka = next(cell for cell in matrix.CELLS if cell.kafka)
    assert matrix.groups_of(kafka) == ("data plane", "a guarantee", "a scheduler")
    row = matrix.render({kafka.name: Result("", {}, {"units": "12 passed"})}).splitlines()[2]
    assert row.count("as python-3.11") == 2
    assert "12 passed" not in row


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("...\n12 passed, 3 deselected in 4.20s\n", "12 passed"),
        ("=== 2 failed, 10 passed, 1 warning in 61.05s (0:01:01) ===\n", "2 failed, 10 passed"),
        ("1 passed, 1 error in 2.00s\n", "1 passed, 1 error"),
        ("3 deselected in 0.10s\n", "no test ran"),
        ("Traceback ...\n", "ended without a count"),
    ],
)
def test_counts_are_those_of_pytest(output: str, count: str) -> None:
    assert matrix.counted(output) == count


def test_a_cell_whose_interpreter_is_missing_says_why(tmp_path) -> None:
    result = matrix.run(Cell("x", python="python3.99"), "units")
    assert result.outcomes == {"units": "not built: python3.99 was not installed"}


def test_a_name_without_an_interpreter_is_none(tmp_path, monkeypatch) -> None:
    """A version manager puts the names of all its versions on the path, and starts the chosen ones."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(matrix.NotBuilt, match=r"python3\.99 was not installed"):
        matrix.build(Cell("x", python="python3.99"), tmp_path / "home")


KNOWN = Result("2026-11-25", {"Python": "3.12.1"}, {"units": "12 passed", "protocol": "3 passed"})


def test_a_group_keeps_its_outcome_until_it_runs_again() -> None:
    new = Result("2026-11-26", KNOWN.versions, {"units": "1 failed, 11 passed"})
    assert matrix.merged(KNOWN, new).outcomes == {"units": "1 failed, 11 passed", "protocol": "3 passed"}


def test_outcomes_of_other_versions_do_not_stay() -> None:
    new = Result("2026-11-26", {"Python": "3.12.2"}, {"units": "12 passed"})
    assert matrix.merged(KNOWN, new) == new


def test_an_environment_that_could_not_be_made_takes_nothing_back() -> None:
    failed = Result("2026-11-26", {"Python": "3.12"}, {"units": "not built: no network"})
    assert matrix.merged(KNOWN, failed) == KNOWN
    assert matrix.merged(Result("", {}, {}), failed) == failed
    assert matrix.merged(failed, KNOWN) == KNOWN


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.airflow], ids=lambda cell: cell.name)
def test_pins_of_another_airflow_stand_in_place_of_todays(cell: Cell) -> None:
    lines = [
        line for line in matrix.constraints(cell).splitlines() if line.startswith("apache-airflow-core==")
    ]
    assert lines[0].startswith(f"apache-airflow-core=={cell.airflow}.")
    assert len(lines) == 1


def test_another_spark_is_bounded_by_its_extra() -> None:
    pins = matrix.constraints(Cell("x", spark="4.0"))
    assert "pyspark" not in pins
    assert "\npyspark==4.2." in matrix.constraints(Cell("x"))


def test_a_spark_without_a_client_is_installed_alone() -> None:
    """Requirements of the Spark provider and of this package would install the client of another line."""
    assert matrix.WITHOUT_CLIENT == LINES_WITHOUT_CLIENT
    assert matrix.overrides(Cell("x")) == ""
    spark, client = map(Requirement, matrix.overrides(Cell("x", spark="4.3")).splitlines())
    assert (spark.name, str(spark.specifier)) == ("pyspark", "==4.3.*")
    assert client.name == "pyspark-client"
    assert client.marker is not None
    assert not client.marker.evaluate()
    assert "pyspark" not in matrix.constraints(Cell("x", spark="4.3"))
