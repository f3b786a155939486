"""Lists tests skipped for a program that this machine lacks, in one line after any run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

REASON = "needs a browser"


class Waiting:
    """Collects tests that were skipped for lack of a browser."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a skipped test, from any process."""
        if report.skipped and isinstance(report.longrepr, tuple) and REASON in report.longrepr[2]:
            self._waiting[report.longrepr[2].removeprefix("Skipped: ")].append(report.nodeid)

    def lines(self) -> list[str]:
        """Return one line per reason."""
        return [f"skipped, {why}: {', '.join(sorted(tests))}" for why, tests in self._waiting.items()]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what to install, and the tests that need it."""
        for line in self.lines():
            terminalreporter.write_line(line, yellow=True)
