"""Report of injected faults, their outcomes and recovery times."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter, defaultdict
from typing import NamedTuple

from airflow_eos_testing.faults import TABLE_STATES
from airflow_eos_testing.oracle import Verdict
from chaos.table import UNREACHABLE, Cell, Fault


class Outcome(NamedTuple):
    """The outcome of one cell.

    :param text: a short description.
    :param seconds: from the fault until an attempt returned the committed record.
    :param faults: number of injected faults.
    """

    text: str
    seconds: float
    faults: int = 1


class Report:
    """Collects outcomes by cell; ``faults`` counts injected faults."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.faults = 0
        self.failures: list[str] = []
        self._outcomes: defaultdict[Cell, list[Outcome]] = defaultdict(list)

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        sys.stdout.write(f"[{time.monotonic() - self._begun:6.1f} s] {text}\n")
        sys.stdout.flush()

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Count a cell's faults, and print their outcome."""
        self.faults += outcome.faults
        self._outcomes[cell].append(outcome)
        self.say(f"{cell}: {outcome.text}, {outcome.seconds:.1f} s")

    def fail(self, cell: Cell, error: Exception) -> None:
        """Record a failed cell; it counts as a fault."""
        self.faults += 1
        self._outcomes[cell].append(Outcome("FAILED", 0.0))
        self.failures.append(f"{cell} FAILED: {type(error).__name__}: {error}")
        self.say("".join(traceback.format_exception(error)))

    def table(self) -> str:
        """Return the table: fault x state, times injected, outcomes, seconds to recover."""
        lines = [f"{'fault':<27} {'state':<10} {'times':>5}  {'seconds':>11}  outcome"]
        lines += [self._line(Cell(fault, state)) for fault in Fault for state in TABLE_STATES]
        return "\n".join(lines)

    def _line(self, cell: Cell) -> str:
        head = f"{cell.fault.value:<27} {cell.state.value:<10} "
        outcomes = self._outcomes.get(cell, [])
        if not outcomes:
            why = f"n/a: {UNREACHABLE[cell]}" if cell in UNREACHABLE else "not in this campaign"
            return f"{head}{0:>5}  {'':>11}  {why}"
        seconds = sorted(each.seconds for each in outcomes)
        shown = f"{seconds[0]:.1f}" if len(seconds) == 1 else f"{seconds[0]:.1f}-{seconds[-1]:.1f}"
        texts = Counter(each.text for each in outcomes).most_common()
        many = len(texts) > 1
        outcome = "; ".join(f"{text} ({count}x)" if many else text for text, count in texts)
        return f"{head}{len(outcomes):>5}  {shown:>11}  {outcome}"


def last_line(runs: int, faults: int, verdict: Verdict) -> str:
    """Return the campaign's last line, from measured numbers."""
    return (
        f"chaos: {runs} runs, {faults} faults, {verdict.records_in} records in, "
        f"{verdict.records_out} records out, {len(verdict.lost)} lost, {len(verdict.duplicated)} duplicated"
    )
