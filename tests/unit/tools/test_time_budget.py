"""The time budget of the tests: rows, what is over, what is left out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.time_budget import CHECK_SECONDS, TimeBudget, row_of


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("tests/unit/wire/test_seal.py", "unit + run"),
        ("tests/run/test_interleavings.py", "unit + run"),
        ("tests/guarantees/test_delivery.py", "guarantees"),
        ("benchmarks/test_x.py", "other"),
    ],
)
def test_files_belong_to_a_row(path, row):
    """The second folder names the row."""
    assert row_of(path) == row


def test_minutes_are_summed_and_compared(monkeypatch):
    """Setup, call and teardown count; a row above its budget says so; what chaos runs is counted."""
    monkeypatch.setenv(CHECK_SECONDS, "30")
    budget = TimeBudget()
    for seconds in (200, 100, 6):
        report = SimpleNamespace(nodeid="tests/integration/test_x.py::test_y[a/b]", duration=seconds)
        budget.pytest_runtest_logreport(report)
    marked = {"chaos": object()}
    chaos = SimpleNamespace(nodeid="tests/guarantees/test_x.py::test_z", get_closest_marker=marked.get)
    budget.pytest_deselected([chaos, chaos])
    lines = budget.lines()
    assert "check             0.5     1.0" in lines
    assert "integration       5.1     5.0  over budget" in lines
    assert lines[-1] == "left to make chaos: 2 of guarantees"
