"""Points at which a run can be held: every protocol state, and two moments between states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.run.states import State

if TYPE_CHECKING:
    from collections.abc import Collection

COMMITTING = "COMMITTING"
"""The commit request is answered; the run has not processed the answer. PROVEN is before the request."""

HALF_WRITTEN = "HALF_WRITTEN"
"""In the middle of the send: at least one target partition is written, and at least one is not."""

TABLE_STATES = (
    State.FENCED,
    State.PLANNED,
    State.SEALED,
    State.OPEN,
    State.WRITTEN,
    State.STAGED,
    State.PROVEN,
    State.COMMITTED,
)
"""The states at which faults are injected, in the order of a run."""

POINTS = frozenset({*(state.value for state in State), COMMITTING, HALF_WRITTEN})


def point_names(points: State | str | Collection[State | str] | None) -> tuple[str, ...]:
    """Return the names of points.

    :raises ConfigurationError: a point is unknown; names it.
    """
    if points is None:
        return ()
    given = [points] if isinstance(points, str) else list(points)
    names = tuple(point.value if isinstance(point, State) else point for point in given)
    for name in names:
        if name not in POINTS:
            raise ConfigurationError(f"{name!r} is not a point of a run; use one of {sorted(POINTS)}")
    return names
