"""A cursor that is moved for some partitions only: the others keep their place, added ones their start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange, TopicPartition
from tests.run.model.broker import ModelBroker
from tests.run.model.scenes import Scene, before, reset, spec

LATEST = Cursor(start="latest")
Mover = Callable[[Scene], None]


def a_cursor(*, mapped: bool = False) -> Scene:
    """A cursor that has read two partitions of a topic; then the topic grows and gets records everywhere."""
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
    """`reset-offsets` moves one partition over its new record."""
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
    """As for a whole cursor: the record that names the layout keeps its count."""
    scene = a_cursor(mapped=True)
    moved_by_hand(scene)
    record = before(scene, spec("next", ranges=LATEST, source_partition=2))
    assert record.ranges == (OffsetRange("src", 2, 0, 1),)


def test_a_cursor_moved_on_a_topic_that_was_made_again_counts_its_partitions_anew() -> None:
    """Partitions of the new topic are not taken for added ones of the old: the start policy applies."""
    scene = a_cursor()
    scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")
    del scene.broker.groups["group"]
    moved_by_hand(scene)
    record = before(scene, spec("next", ranges=LATEST))
    assert OffsetRange("src", 2, 1, 1) in record.ranges
