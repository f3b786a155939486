"""A cursor that is moved for some partitions only: the others keep their position, added ones their start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange, TopicPartition
from tests.protocol.model import scenes
from tests.protocol.model.broker import LEDGER, OFFSETS, ModelBroker
from tests.protocol.model.scenes import Inline, Scene, before, reset, spec

LATEST = Cursor(start="latest")
Mover = Callable[[Scene], None]


def a_cursor(*, mapped: bool = False) -> Scene:
    """A cursor that has read two partitions; then the topic gets a third one, and records in each."""
    scene = Scene(ModelBroker({"src": 2, "out": 3}))
    for partition in (0, 1):
        scene.broker.write_input("src", partition, f"p{partition}old")
    for only in (0, 1) if mapped else (None,):
        before(scene, spec("first", source_partition=only))
    scene.broker.grow("src", 3)
    for partition in (0, 1, 2):
        scene.broker.write_input("src", partition, f"p{partition}new")
    return scene


def moved_by_a_run(scene: Scene) -> None:
    """A run over given ranges reads one partition and advances the cursor."""
    before(scene, spec("given", ranges=Explicit((OffsetRange("src", 0, 1, 2),), advance=True)))


def moved_by_hand(scene: Scene) -> None:
    """`reset-offsets` moves one partition past its new record."""
    reset(scene, {TopicPartition("src", 0): 2})


@pytest.mark.parametrize("move", [moved_by_a_run, moved_by_hand])
def test_a_partial_move_does_not_make_an_added_partition_known(move: Mover) -> None:
    """A partition that was added is read from its beginning, though start is latest and others were moved."""
    scene = a_cursor()
    move(scene)
    record = before(scene, spec("next", ranges=LATEST))
    assert OffsetRange("src", 2, 0, 1) in record.ranges
    assert {"p1new", "p2new"} <= set(scene._visible("out"))


def test_a_partial_move_of_a_mapped_cursor_does_not_make_an_added_partition_known() -> None:
    """As for a whole cursor: the record of the layout keeps its number of partitions."""
    scene = a_cursor(mapped=True)
    moved_by_hand(scene)
    record = before(scene, spec("next", ranges=LATEST, source_partition=2))
    assert record.ranges == (OffsetRange("src", 2, 0, 1),)


def test_a_cursor_on_a_topic_that_was_made_again_is_moved_in_each_of_its_partitions() -> None:
    """Partitions left out would have no position: a start of latest would skip their records."""
    scene = a_cursor()
    scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")
    del scene.broker.groups["group"]
    with pytest.raises(ConfigurationError, match=r"^src-1, src-2: the topic was created again"):
        moved_by_hand(scene)
    reset(scene, {TopicPartition("src", number): 1 for number in range(3)})
    record = before(scene, spec("next", ranges=LATEST))
    assert set(record.ranges) == {OffsetRange("src", number, 1, end) for number, end in enumerate((2, 2, 1))}


@pytest.mark.parametrize("to", [0, 2])
@pytest.mark.parametrize(
    "away", [{TopicPartition(LEDGER, 0)}, {OFFSETS}, {TopicPartition(LEDGER, 0), OFFSETS}]
)
def test_a_move_whose_end_was_forgotten_is_made(
    monkeypatch: pytest.MonkeyPatch, away: set[TopicPartition], to: int
) -> None:
    """The coordinator calls it complete without markers: if taken for aborted, it would be undone."""
    scene = a_cursor()
    monkeypatch.setattr(scenes, "Inline", forgetting(away))
    reset(scene, {TopicPartition("src", 0): to})
    monkeypatch.undo()
    record = before(scene, spec("next"))
    assert OffsetRange("src", 0, to, 2) in record.ranges


@pytest.mark.parametrize("to", [0, 2])
def test_a_move_whose_command_died_is_not_taken_for_aborted(monkeypatch: pytest.MonkeyPatch, to: int) -> None:
    """Nobody wrote the omitted marker: the coordinator still tells how the move was decided."""
    scene = a_cursor()
    with monkeypatch.context() as patch:
        patch.setattr(scenes, "Inline", forgetting({TopicPartition(LEDGER, 0)}, dies=True))
        with pytest.raises(Death):
            reset(scene, {TopicPartition("src", 0): to})
    record = before(scene, spec("next"))
    assert OffsetRange("src", 0, to, 2) in record.ranges


class Death(BaseException):
    """The process dies."""


def forgetting(away: set[TopicPartition], *, dies: bool = False) -> type[Inline]:
    """Return steps whose commit omits the markers of some partitions."""

    class Forgetting(Inline):
        def step(self, name: str, run: Callable[[], Any], faults: Any = (), late: Any = None) -> Any:
            if name != "commit":
                return super().step(name, run, faults, late)
            self._broker.away.update(away)
            done = super().step(name, run, faults, late)
            self._broker.settle()
            self._broker.away.clear()
            if dies:
                raise Death
            return done

    return Forgetting


def test_a_move_is_refused_behind_pending_offsets() -> None:
    """The next marker of the id would commit what an aborted run wanted to commit (KAFKA-20734)."""
    scene = a_cursor()
    died = scene.broker.init_producer("eos.cursor.group")
    tp = TopicPartition("src", 1)
    scene.broker.add_offsets(died, "group", {tp: CommittedOffset(2)})
    scene.broker.away.add(OFFSETS)
    scene.broker.end_transaction(died, commit=False)
    scene.broker.settle()
    scene.broker.away.clear()
    with pytest.raises(OutcomeUnknown, match="'group': offsets of an earlier transaction are still pending"):
        reset(scene, {TopicPartition("src", 0): 2})
    record = before(scene, spec("next"))
    assert {OffsetRange("src", 0, 1, 2), OffsetRange("src", 1, 1, 2)} <= set(record.ranges)


def test_a_second_move_leaves_the_first_one_to_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first command died without its marker; a fence would make the coordinator forget the outcome."""
    scene = a_cursor()
    with monkeypatch.context() as patch:
        patch.setattr(scenes, "Inline", forgetting({TopicPartition(LEDGER, 0)}, dies=True))
        with pytest.raises(Death):
            reset(scene, {TopicPartition("src", 0): 0})
    with pytest.raises(OutcomeUnknown, match="run the pipeline once"):
        reset(scene, {TopicPartition("src", 0): 2})
    record = before(scene, spec("next"))
    assert OffsetRange("src", 0, 0, 2) in record.ranges
