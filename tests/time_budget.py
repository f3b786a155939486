"""Where the minutes of ``make test`` went, against the budget, and what waits in ``make chaos``."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

BUDGET = {"check": 1.0, "unit + run": 3.0, "integration": 5.0, "guarantees": 9.0, "system": 6.0}
"""Minutes of tests, on two quiet cores, one after the other."""
CHECK_SECONDS = "EOS_CHECK_SECONDS"

_ROWS = {"unit": "unit + run", "run": "unit + run"}


def row_of(path: str) -> str:
    """Return the row of a test file, from its path below the root."""
    parts = path.split("/")
    folder = parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"
    return _ROWS.get(folder, folder)


class TimeBudget:
    """Collects durations, and prints them behind a whole run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._deselected: Counter[str] = Counter()
        self._started = time.monotonic()
        check = os.environ.get(CHECK_SECONDS)
        if check:
            self._seconds["check"] = float(check)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call and teardown: fixtures of the session count where they start and end."""
        self._seconds[row_of(report.nodeid.partition("::")[0])] += report.duration

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what the marker leaves out."""
        for item in items:
            if item.get_closest_marker("chaos") is not None:
                self._deselected[row_of(item.nodeid.partition("::")[0])] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the controller, where tests run side by side."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["chaos"] = dict(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear a worker; each of them has collected everything."""
        self._deselected |= Counter(getattr(node, "workeroutput", {}).get("chaos", {}))

    def lines(self) -> list[str]:
        """Return the table."""
        found = [f"{'minutes':<14}{'used':>7}{'budget':>8}"]
        for name, budget in BUDGET.items():
            used = self._seconds.get(name, 0.0) / 60
            found.append(f"{name:<14}{used:>7.1f}{budget:>8.1f}{'  over budget' if used > budget else ''}")
        total = (time.monotonic() - self._started + self._seconds.get("check", 0.0)) / 60
        found.append(f"{'on the clock':<14}{total:>7.1f}{sum(BUDGET.values()):>8.1f}")
        moved = ", ".join(f"{count} of {name}" for name, count in sorted(self._deselected.items()))
        if moved:
            found.append(f"left to make chaos: {moved}")
        return found

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table when all tests were asked for, as ``make test`` does."""
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            terminalreporter.section("time budget")
            for line in self.lines():
                terminalreporter.write_line(line)
