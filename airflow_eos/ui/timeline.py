"""Draws the duration of runs by state: of one run, or of several as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.run.states import HOLDS_OPEN, IN_WORDS, State

WIDTH = 1000.0
"""Of all drawings."""
MEANING: Mapping[str, str] = {state.value: text for state, text in IN_WORDS.items()}
"""The condition that holds when a state is entered; states of a newer version have none."""
_HOLDS_OPEN = frozenset(state.value for state in HOLDS_OPEN)


def states_of(record: RunRecord) -> list[dict[str, Any]]:
    """Return each state, in seconds, with the place in a drawing of the time before it.

    ``open`` says whether the transaction was open meanwhile.
    """
    whole = max((seconds for _, seconds in record.trace), default=0.0) or 1.0
    before, visits, last = 0.0, [], ""
    for state, seconds in record.trace:
        visits.append(
            {
                "state": state,
                "meaning": MEANING.get(state, ""),
                "seconds": round(seconds - before, 3),
                "x": round(before / whole * WIDTH, 2),
                "w": round(max(seconds - before, 0) / whole * WIDTH, 2),
                "open": last in _HOLDS_OPEN,
            }
        )
        before, last = seconds, state
    return visits


def shares_of(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return a stacked bar of the times before each state, for each run.

    Repeated visits of a state are one part.
    """
    rows = []
    for record in records:
        seconds: dict[str, float] = {}
        for visit in states_of(record):
            seconds[visit["state"]] = seconds.get(visit["state"], 0.0) + max(visit["seconds"], 0.0)
        rows.append((record, seconds))
    longest = max((sum(seconds.values()) for _, seconds in rows), default=0.0) or 1.0
    order = [state.value for state in State]
    bars = [
        {
            "run_key": record.run_key,
            "run_id": record.run_id,
            "seconds": round(sum(seconds.values()), 3),
            "parts": _parts(seconds, longest, order),
        }
        for record, seconds in rows
    ]
    met = {state for _, seconds in rows for state in seconds}
    return {"runs": bars, "states": [state for state in order if state in met], "meaning": MEANING}


def _parts(seconds: Mapping[str, float], longest: float, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the parts of one bar, without states of newer versions."""
    x, parts = 0.0, []
    for state in order:
        if state in seconds:
            width = seconds[state] / longest * WIDTH
            part = {"state": state, "seconds": round(seconds[state], 3)}
            parts.append({**part, "x": round(x, 2), "w": round(width, 2)})
            x += width
    return parts
