"""The search itself: what it remembers from one execution to the next is what the next would compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.protocol.model import scenes
from tests.protocol.model.explorer import Common, Run, Schedule, _Search, explore
from tests.protocol.model.scenes import Scene
from tests.protocol.test_interleavings import OUT


@pytest.mark.search
@pytest.mark.parametrize(
    ("scene", "executions"),
    [
        (scenes.indexed, 40),
        (scenes.reprocessed, 40),
        (scenes.leader_away(OUT), 40),
        # Its event is over in the middle of an execution; what repeats that one is the 900th.
        (scenes.foreign_consumer, 1_000),
    ],
)
def test_a_search_without_memory_reports_the_same(
    scene: Callable[[Run], Scene], executions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is asked at each end, the scene prepared in each execution, each answer hashed again."""
    remembered = explore(scene, deviations=2, executions=executions)

    execute = _Search.execute

    def afresh(self: _Search, schedule: Schedule) -> list[Schedule]:
        self._common = Common()
        return execute(self, schedule)

    def repeat(self: Run, schedule: Schedule) -> None:
        if schedule.deviation is not None:
            for action in [*schedule.actions[: schedule.length], schedule.deviation]:
                assert action in self.actions()
                self.perform(action)

    monkeypatch.setattr(_Search, "execute", afresh)
    monkeypatch.setattr(Run, "repeat", repeat)
    assert explore(scene, deviations=2, executions=executions) == remembered
    assert remembered.counter_example is None
