"""Steps of the getting-started page that `make dist` follows are on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.try_getting_started import block, commands

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "getting-started.md").read_text()


@pytest.mark.parametrize(
    ("language", "begin"),
    [
        ("python", "# publish.py"),
        ("python", "# dags/orders_daily.py"),
        ("console", "python -m airflow_eos_testing.kafka"),
        ("console", "airflow eos doctor"),
        ("console", "airflow dags unpause"),
        ("console", "python -m airflow_eos status"),
    ],
)
def test_each_step_is_one_block_of_the_page(language, begin):
    """A step that was moved or reworded is found here, not when a release is built."""
    assert block(PAGE, language, begin).startswith(begin)


def test_commands_are_split_as_a_shell_does():
    """Continuation lines, quotes, comments."""
    text = "a b \\\n    c 'd e'\nf  # g\n"
    assert commands(text) == [["a", "b", "c", "d e"], ["f"]]


@pytest.mark.parametrize(("page", "count"), [("", 0), ("```console\nx\n```\n```console\nx y\n```\n", 2)])
def test_a_step_that_is_missing_or_there_twice_is_named(page, count):
    """It is unclear which one is meant."""
    with pytest.raises(SystemExit, match=f"{count} console blocks begin with 'x'"):
        block(page, "console", "x")
