"""The time budget of the tests: rows, what is over, what is left out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.plugins.time_budget import CHECK_SECONDS, TimeBudget, row_of, shares


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("tests/unit/recordbatch/test_sealer.py", "unit + protocol"),
        ("tests/protocol/test_interleavings.py", "unit + protocol"),
        ("tests/guarantees/test_delivery.py", "guarantees"),
        ("benchmarks/test_x.py", "other"),
    ],
)
def test_files_belong_to_a_row(path, row):
    """The second folder names the row."""
    assert row_of(path) == row


@pytest.mark.parametrize(
    ("phases", "seconds"),
    [
        ([], {}),
        ([("unit", 3.0, 3.0)], {}),
        ([("unit", 0.0, 4.0), ("unit", 5.0, 7.0)], {"unit": 6.0}),
        ([("unit", 0.0, 4.0), ("unit", 1.0, 3.0)], {"unit": 4.0}),
        ([("system", 0.0, 6.0), ("unit", 2.0, 4.0)], {"system": 5.0, "unit": 1.0}),
        ([("a", 0.0, 6.0), ("b", 0.0, 6.0), ("b", 3.0, 9.0)], {"a": 2.5, "b": 6.5}),
    ],
)
def test_each_moment_is_shared_by_what_runs_at_it(phases, seconds):
    """Two concurrent tests take half of the time each; a time in which nothing runs counts for none."""
    assert shares(phases) == pytest.approx(seconds)


def test_minutes_on_the_clock_are_compared(monkeypatch):
    """Set-up, call and teardown count; a row above its budget is reported; tests in chaos are counted."""
    monkeypatch.setenv(CHECK_SECONDS, "30")
    budget = TimeBudget()
    for start, stop in ((0, 200), (200, 300), (300, 312)):
        for row in ("integration", "guarantees"):
            report = SimpleNamespace(nodeid=f"tests/{row}/test_x.py::test_y[a/b]", start=start, stop=stop)
            budget.pytest_runtest_logreport(report)
    report = SimpleNamespace(nodeid="tests/integration/test_x.py::test_z", start=400, stop=700)
    budget.pytest_runtest_logreport(report)
    marked = {"chaos": object()}
    chaos = SimpleNamespace(nodeid="tests/guarantees/test_x.py::test_z", get_closest_marker=marked.get)
    budget.pytest_deselected([chaos, chaos])
    lines = budget.lines()
    assert "check             0.5     0.5" in lines
    assert "integration       7.6     7.0  over budget" in lines
    assert "guarantees        2.6     3.0" in lines
    assert lines[-1] == "left to make chaos: 2 of guarantees"
