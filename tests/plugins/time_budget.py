"""Reports the minutes of ``make test`` against the budget, and the tests that are left to ``make chaos``."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

BUDGET = {"check": 0.5, "unit + protocol": 3.0, "integration": 7.0, "guarantees": 3.0, "system": 4.5}
"""Wall-clock minutes, on two idle cores."""
CHECK_SECONDS = "EOS_CHECK_SECONDS"

_ROWS = {"unit": "unit + protocol", "protocol": "unit + protocol"}


def row_of(path: str) -> str:
    """Return the row of a test file, from its path below the root."""
    parts = path.split("/")
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"
    return _ROWS.get(folder, folder)


def shares(phases: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Split wall-clock time: each moment is shared equally by the phases that ran at it.

    Args:
        phases: Row, start and end in seconds of a set-up, a call or a teardown, from any process.

    Returns:
        Wall-clock seconds by row. Their sum is the time during which anything ran.
    """
    changes = sorted(
        change for row, start, end in phases for change in ((start, 1, row), (end, -1, row)) if end > start
    )
    running: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for (moment, step, row), following in pairwise(changes):
        running[row] += step
        passed = (following[0] - moment) / (running.total() or 1)
        for name, count in running.items():
            seconds[name] += count * passed
    return dict(seconds)


class TimeBudget:
    """Collects the times of tests, and prints a summary after a whole run."""

    def __init__(self) -> None:
        self._phases: list[tuple[str, float, float]] = []
        self._deselected: Counter[str] = Counter()
        self._started = time.monotonic()
        self._check = float(os.environ.get(CHECK_SECONDS) or 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record set-up, call and teardown: session fixtures count where they start and end."""
        self._phases.append((row_of(report.nodeid.partition("::")[0]), report.start, report.stop))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count the tests that the marker ``chaos`` leaves out."""
        for item in items:
            if item.get_closest_marker("chaos") is not None:
                self._deselected[row_of(item.nodeid.partition("::")[0])] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the counts to xdist's controller."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["chaos"] = dict(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the counts of a worker; every worker has collected all tests."""
        self._deselected |= Counter(getattr(node, "workeroutput", {}).get("chaos", {}))

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        table = [f"{'minutes':<14}{'used':>7}{'budget':>8}"]
        seconds = {"check": self._check, **shares(self._phases)}
        for name, budget in BUDGET.items():
            used = seconds.get(name, 0.0) / 60
            table.append(f"{name:<14}{used:>7.1f}{budget:>8.1f}{'  over budget' if used > budget else ''}")
        total = (time.monotonic() - self._started + self._check) / 60
        table.append(f"{'on the clock':<14}{total:>7.1f}{sum(BUDGET.values()):>8.1f}")
        table.append("tests that run side by side share the clock")
        moved = ", ".join(f"{count} of {name}" for name, count in sorted(self._deselected.items()))
        if moved:
            table.append(f"left to make chaos: {moved}")
        return table

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table after a run of all tests except the long ones, as in ``make test``."""
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if whole and config.option.markexpr == "not chaos":
            terminalreporter.section("time budget")
            for line in self.lines():
                terminalreporter.write_line(line)
