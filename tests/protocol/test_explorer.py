"""The search itself: what it reuses from earlier executions equals what a new execution would compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.protocol.model import scenes, table_scenes
from tests.protocol.model.explorer import Run, Schedule, explore
from tests.protocol.model.scenes import Scene
from tests.protocol.test_interleavings import OUT


@pytest.mark.search
@pytest.mark.parametrize(
    ("scene", "executions"),
    [
        (scenes.indexed, 40),
        (scenes.reprocessed, 40),
        (scenes.rounds, 40),
        (scenes.lost_blocks, 200),
        (scenes.reset_beside, 200),
        (scenes.leader_away(OUT), 40),
        (table_scenes.maintained, 100),
        # Its event fires in the middle of an execution; only the 900th execution repeats that one.
        (scenes.foreign_consumer, 1_000),
    ],
)
def test_a_search_without_memory_reports_the_same(
    scene: Callable[[Run], Scene], executions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the scene made anew, all code run and the oracle asked in each execution, the report is equal."""
    remembered = explore(scene, deviations=2, executions=executions)
    repeat = Run.repeat

    def can_be_repeated(self: Run, schedule: Schedule) -> None:
        self.memory.sound.clear()
        repeat(self, Schedule(schedule.actions, schedule.length))
        assert schedule.deviation is None or schedule.deviation in self.actions()
        repeat(self, schedule)

    monkeypatch.setattr(Run, "repeat", can_be_repeated)
    assert explore(scene, deviations=2, executions=executions, afresh=True) == remembered
    assert remembered.counter_example is None


@pytest.mark.search
def test_what_the_scenes_remember_of_their_broker_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only events, and steps that may fail, change the broker, so a fingerprint stays valid until then."""
    fingerprint = Scene.fingerprint

    def compared(self: Scene) -> str:
        remembered = fingerprint(self)
        self.changed()
        assert fingerprint(self) == remembered
        return remembered

    monkeypatch.setattr(Scene, "fingerprint", compared)
    for scene in (scenes.reprocessed, scenes.intervals, scenes.indexed, scenes.leader_away(OUT)):
        assert explore(scene, deviations=1, executions=60).counter_example is None


@dataclass
class Counter:
    """A world of one number, which its processes read outside a step, although they must not."""

    clock: Any = field(default_factory=scenes.Clock)
    number: int = 0

    def fingerprint(self) -> str:
        return str(self.number)

    def changed(self) -> None:
        pass

    def saved(self) -> int:
        return self.number

    def restore(self, saved: int) -> None:
        self.number = saved

    def events(self) -> list[str]:
        return []

    def fire(self, event: str) -> None:
        raise AssertionError(event)

    def check_step(self) -> str | None:
        return None

    def check_end(self) -> str | None:
        return None


def test_a_process_that_depends_on_more_than_answers_is_refused() -> None:
    """Such a process would behave differently when the search repeats it."""

    def scene(run: Run) -> Counter:
        counter = run.world = Counter()

        def add() -> None:
            counter.number += 1

        def body() -> None:
            for _ in range(3):
                run.step(f"add to {counter.number}", add, ("answer lost",))

        run.spawn("first", body)
        run.spawn("second", body)
        return counter

    with pytest.raises(AssertionError, match="depends on more than answers"):
        explore(scene, deviations=1, executions=100)
