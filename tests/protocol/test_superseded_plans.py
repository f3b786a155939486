"""A plan that is refused because a newer attempt has committed meanwhile: the real protocol on a model."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.exceptions import CursorMoved, RunFenced
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ranges import TopicPartition
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.ports import ModelCluster
from tests.protocol.model.scenes import Scene, before, spec


def a_scene() -> Scene:
    """A source of which a first run has read all, and more that nobody has read."""
    broker = ModelBroker({"src": 1, "out": 1})
    broker.write_input("src", 0, "a")
    scene = Scene(broker)
    before(scene, spec("r0"))
    broker.write_input("src", 0, "b")
    return scene


def between_the_two_reads(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Act once, when a plan has read the group's offsets and not yet the ledger's cursor."""
    read, pending = ModelCluster.committed, [act]

    def committed(self: ModelCluster, *arguments: Any, **options: Any) -> Any:
        found = read(self, *arguments, **options)
        if pending:
            pending.pop()()
        return found

    monkeypatch.setattr(ModelCluster, "committed", committed)


def test_a_plan_that_a_newer_run_has_overtaken_is_fenced_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fenced is retried; a moved cursor would fail the task for good, and nobody has moved it."""
    scene = a_scene()
    between_the_two_reads(monkeypatch, lambda: before(scene, spec("r2")))
    with pytest.raises(RunFenced, match="newer attempt"):
        before(scene, spec("r1"))
    assert before(scene, spec("r1", try_number=2)).records_read == 0
    assert sorted(scene._visible("out")) == sorted(scene._all_input())


def test_a_plan_that_its_own_retry_has_overtaken_finds_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done: that is a success."""
    scene = a_scene()
    between_the_two_reads(monkeypatch, lambda: before(scene, spec("r1", try_number=2)))
    assert before(scene, spec("r1")).found


def test_a_cursor_that_a_stranger_moved_is_refused_by_its_owner() -> None:
    """Nobody took our epoch: somebody has to look."""
    scene = a_scene()
    where = TopicPartition("src", 0)
    scene.broker.groups["group"][where] = CommittedOffset(0, "")
    with pytest.raises(CursorMoved):
        before(scene, spec("r1"))
