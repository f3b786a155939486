"""Interleaved rounds: every contender once per round, so that a slow minute affects all alike."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.processes import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WARM_UPS = int(os.environ.get("WARM_UPS", "2"))
"""Warm-up rounds: after one of 2,000,000 records the JVM is still compiling; 0 gives unreliable results."""


@dataclass
class Series:
    """Measurements of one contender, one per round.

    :param stages: seconds from the start to each state, for our runs.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: dict[str, float] = field(default_factory=dict)
    stages: list[dict[str, float]] = field(default_factory=list)

    def summary(self, records: int, megabytes: float) -> dict[str, Any]:
        """Return medians and rates."""
        seconds = statistics.median(self.seconds)
        return {
            **asdict(self),
            "median_seconds": seconds,
            "records_per_second": records / seconds,
            "mb_per_second": megabytes / seconds,
            "median_cpu_seconds": statistics.median(self.cpu) if self.cpu else None,
        }


def run_rounds(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Series]:
    """Run every contender ``WARM_UPS`` times uncounted, then ``rounds`` times in turn; print every round.

    A contender may return seconds per state.
    """
    series = {name: Series() for name in contenders}
    for number in range(1 - WARM_UPS, rounds + 1):
        for name, job in contenders.items():
            begun = time.perf_counter()
            with Watch() as usage:
                stages = job()
                seconds = time.perf_counter() - begun
            label = f"round {number}" if number > 0 else "warm-up"
            print(f"  {label}: {name:32} {seconds:7.2f} s  {usage.cpu:7.2f} CPU s", flush=True)
            if number < 1:
                continue
            timings = series[name]
            timings.seconds.append(seconds)
            timings.cpu.append(usage.cpu)
            for kind, peak in usage.peak_mb.items():
                timings.peak_mb[kind] = max(timings.peak_mb.get(kind, 0.0), round(peak, 1))
            if isinstance(stages, dict):
                timings.stages.append(stages)
    return series


def ratio(own: list[float], peer: list[float]) -> float:
    """Return the median of the per-round ratios; below 1 is better than the peer."""
    return statistics.median(a / b for a, b in zip(own, peer, strict=True))


def shares(stages: list[dict[str, float]]) -> dict[str, float]:
    """Return the median share of a run between each state and the one before."""
    parts_of_time: dict[str, list[float]] = {}
    for times in stages:
        before = 0.0
        for state, moment in times.items():
            parts_of_time.setdefault(state, []).append((moment - before) / times["END"])
            before = moment
    return {state: round(statistics.median(values), 4) for state, values in parts_of_time.items()}


def open_share(stages: list[dict[str, float]]) -> float:
    """Return the median share of a run during which its transaction is open."""
    return statistics.median((t["COMMITTED"] - t["OPEN"]) / t["END"] for t in stages)
