"""Plans that are refused because a newer attempt has committed meanwhile: the real protocol on a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import (
    CursorMoved,
    GroupNotEmpty,
    LedgerReplaced,
    OffsetsOutOfRange,
    RunFenced,
    TopicRecreated,
)
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ranges import Explicit, OffsetRange, TopicPartition
from airflow_eos.model.table import PublishedRuns
from airflow_eos.run.table_steps import TableSteps
from tests.protocol.model.broker import LEDGER, ModelBroker
from tests.protocol.model.explorer import Died
from tests.protocol.model.ports import ModelCluster, ModelData, ModelTransactions
from tests.protocol.model.scenes import Scene, before, spec
from tests.protocol.model.table_scenes import TableScene
from tests.protocol.model.table_scenes import spec as table_spec


def a_scene() -> Scene:
    """A source of which a first run has read all, and more records that no run has read."""
    broker = ModelBroker({"src": 1, "out": 1})
    broker.write_input("src", 0, "a")
    scene = Scene(broker)
    before(scene, spec("r0"))
    broker.write_input("src", 0, "b")
    return scene


def between_the_two_reads(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Act once, after a plan has read the group's offsets and before it reads the ledger's cursor."""
    read, pending = ModelCluster.committed, [act]

    def committed(self: ModelCluster, *arguments: Any, **options: Any) -> Any:
        offsets = read(self, *arguments, **options)
        if pending:
            pending.pop()()
        return offsets

    monkeypatch.setattr(ModelCluster, "committed", committed)


def test_a_plan_that_a_newer_run_has_overtaken_is_fenced_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """RunFenced is retried; CursorMoved would fail the task for good, though nobody moved the cursor."""
    scene = a_scene()
    between_the_two_reads(monkeypatch, lambda: before(scene, spec("r2")))
    with pytest.raises(RunFenced, match="newer attempt"):
        before(scene, spec("r1"))
    assert before(scene, spec("r1", try_number=2)).records_read == 0
    assert sorted(scene._visible("out")) == sorted(scene._all_input())


def test_a_plan_that_its_own_retry_has_overtaken_finds_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done, so the result is a success."""
    scene = a_scene()
    between_the_two_reads(monkeypatch, lambda: before(scene, spec("r1", try_number=2)))
    assert before(scene, spec("r1")).found


def test_a_cursor_that_a_stranger_moved_is_refused_by_its_owner() -> None:
    """No other run has taken our epoch, so a person must look into it."""
    scene = a_scene()
    tp = TopicPartition("src", 0)
    scene.broker.groups["group"][tp] = CommittedOffset(0, "")
    with pytest.raises(CursorMoved):
        before(scene, spec("r1"))


def before_the_second_epoch(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Act once, after a run has proved its first epoch and before it takes the second one."""
    fence, fenced = ModelTransactions.fence, []

    def take(self: ModelTransactions, transactional_id: str) -> Any:
        fenced.append(transactional_id)
        if len(fenced) == 2:
            act()
        return fence(self, transactional_id)

    monkeypatch.setattr(ModelTransactions, "fence", take)


def test_a_run_between_two_epochs_of_another_has_that_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first epoch lost its sealed batches; CursorMoved would fail the task for good."""
    scene = a_scene()
    before_the_second_epoch(monkeypatch, lambda: before(scene, spec("r2")))

    def loses_blocks(*of: Any) -> ModelData:
        return ModelData(*of, loses_blocks=True)

    assert before(scene, spec("r1", max_send_attempts=3), loses_blocks).records_read == 0
    assert sorted(scene._visible("out")) == sorted(scene._all_input())


@pytest.mark.parametrize("ends_at", ["its INTENT", "its commit"])
def test_a_run_between_an_intent_and_its_table_has_that_planned_anew(
    monkeypatch: pytest.MonkeyPatch, ends_at: str
) -> None:
    """Each run with a table takes two epochs: the next run may take the cursor between them."""
    scene = TableScene()
    scene.broker.write_input("src", 0, "a")

    def following() -> None:
        if ends_at == "its INTENT":
            monkeypatch.setattr(TableSteps, "publish", dies)
        with contextlib.suppress(Died):
            before(scene, table_spec("r2"))
        monkeypatch.undo()

    def dies(*_: Any) -> None:
        raise Died

    before_the_second_epoch(monkeypatch, following)
    before(scene, table_spec("r1"))
    before(scene, table_spec("r3"))
    assert scene.table.rows == ["a"]


@pytest.mark.parametrize("seen", ["by the second epoch", "while it is read"])
def test_a_topic_that_is_made_again_under_a_plan_is_not_read_by_a_new_one(
    monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """Given offsets name records of the old topic, not those of the new one."""
    scene = TableScene()
    scene.broker.write_input("src", 0, "a")
    given = table_spec(ranges=Explicit((OffsetRange("src", 0, 0, 1),)))

    def make_again() -> None:
        scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")

    if seen == "by the second epoch":
        before_the_second_epoch(monkeypatch, make_again)
    else:

        def finds_no_offsets(*_: Any) -> Any:
            make_again()
            monkeypatch.undo()
            raise OffsetsOutOfRange("src-0 ends below the requested offset")

        monkeypatch.setattr(ModelData, "seal", finds_no_offsets)
    with pytest.raises(TopicRecreated, match=r"id-src .* another now"):
        before(scene, given)
    assert scene.table.rows == []


def test_an_intent_that_a_newer_run_pins_meanwhile_is_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is fenced and retried; DifferentWork would fail it for good."""
    scene = TableScene()
    scene.broker.write_input("src", 0, "a")

    def dies(*_: Any) -> None:
        raise Died

    def following() -> None:
        with monkeypatch.context() as inner, contextlib.suppress(Died):
            inner.setattr(TableSteps, "publish", dies)
            before(scene, table_spec("r2"))

    between_the_two_reads(monkeypatch, following)
    with pytest.raises(RunFenced, match="newer attempt"):
        before(scene, table_spec("r1"))
    before(scene, table_spec("r1", try_number=2))
    assert scene.table.rows == ["a"]


@pytest.mark.parametrize("moment", ["the fence", "the seal"])
def test_a_ledger_that_is_made_again_under_an_attempt_gets_no_record(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Behind the fence nothing is read for it; what was sealed by then is not committed."""
    scene = a_scene()
    sealed: list[str] = []
    fence, seal = ModelTransactions.fence, ModelData.seal

    def made_again() -> None:
        scene.broker.topics[LEDGER] = replace(scene.broker.topics[LEDGER], topic_id="of another topic")

    def fenced(self: ModelTransactions, transactional_id: str) -> Any:
        session = fence(self, transactional_id)
        if moment == "the fence":
            made_again()
        return session

    def seals(self: ModelData, *arguments: Any) -> Any:
        sealed.append(moment)
        if moment == "the seal":
            made_again()
        return seal(self, *arguments)

    monkeypatch.setattr(ModelTransactions, "fence", fenced)
    monkeypatch.setattr(ModelData, "seal", seals)
    with pytest.raises(LedgerReplaced, match="of another topic"):
        before(scene, spec("r1"))
    assert sealed == (["the seal"] if moment == "the seal" else [])
    scene.broker.settle()
    assert scene._visible("out") == ["a"]


def another_source(scene: Scene) -> None:
    scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")


def moved_by_a_stranger(scene: Scene) -> None:
    scene.broker.groups["group"][TopicPartition("src", 0)] = CommittedOffset(0, "")


def a_consumer_joined(scene: Scene) -> None:
    scene.broker.members["group"] = 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (another_source, TopicRecreated),
        (moved_by_a_stranger, CursorMoved),
        (a_consumer_joined, GroupNotEmpty),
    ],
)
def test_what_changed_while_the_output_was_written_is_seen_before_its_commit(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Scene], None], error: type[Exception]
) -> None:
    """The plan was good when it was made."""
    scene, send = a_scene(), ModelData.send

    def sends(self: ModelData, *arguments: Any) -> Any:
        change(scene)
        return send(self, *arguments)

    monkeypatch.setattr(ModelData, "send", sends)
    with pytest.raises(error):
        before(scene, spec("r1"))
    scene.broker.settle()
    assert scene._visible("out") == ["a"]


def test_a_group_with_members_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before the commit would refuse it too, when all is read, sealed and sent."""
    scene = a_scene()
    a_consumer_joined(scene)
    sealed: list[Any] = []
    monkeypatch.setattr(ModelData, "seal", lambda _data, plan, *_: sealed.append(plan))
    with pytest.raises(GroupNotEmpty):
        before(scene, spec("r1"))
    assert sealed == []


def test_a_token_is_above_the_tables_where_the_ledger_is_shorter_than_it_was() -> None:
    """Restored from a copy, its log ends below what earlier runs had: their zombies must stay older."""
    scene = TableScene()
    scene.broker.write_input("src", 0, "a")
    before(scene, table_spec("r1"))
    published = PublishedRuns.from_json(scene.table.property_text)
    ((scope, run),) = published.runs.items()
    later = replace(run, key="run/pipe/lost", token=run.token + 1000)
    scene.table.property_text = replace(published, runs={scope: later}).to_json()
    scene.broker.write_input("src", 0, "b")
    before(scene, table_spec("r2"))
    assert scene.table.rows == ["a", "b"]
    assert PublishedRuns.from_json(scene.table.property_text).runs[scope].token == later.token + 1
