"""Which runs the ledger's record of a run counts for: the real protocol on a model cluster."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError, RunFailed, SendError, TopicRecreated
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange, TopicPartition
from airflow_eos.model.spec import RunSpec
from tests.protocol.model.broker import LEDGER, ModelBroker
from tests.protocol.model.ports import ModelData, ModelTransactions
from tests.protocol.model.scenes import Scene, before, reset, spec

EXPLICIT = Explicit((OffsetRange("src", 0, 0, 2),))
ROUNDS = Cursor(max_records=1, until_caught_up=True)


def a_cluster(records: int = 2) -> Scene:
    """A source of two partitions with ``records`` records each, and a sink."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    for number in range(records):
        for partition in range(2):
            scene.broker.write_input("src", partition, f"p{partition}r{number}")
    return scene


def of(environment: str, **changes: Any) -> RunSpec:
    """The same run in one of the environments that share cluster and ledger."""
    return spec(prefix=environment, group_id=environment, **changes)


@pytest.mark.parametrize("ranges", [Cursor(), EXPLICIT, ROUNDS], ids=["cursor", "explicit", "rounds"])
@pytest.mark.parametrize("changes", [{}, {"clear_number": 1}], ids=["first life", "cleared"])
def test_a_commit_of_another_environment_is_not_this_ones_success(
    ranges: Any, changes: dict[str, Any]
) -> None:
    """A run that was committed under another prefix is refused by name: this environment did not do it."""
    scene = a_cluster()
    before(scene, of("staging", ranges=ranges))
    written = scene._visible("out")
    with pytest.raises(ConfigurationError, match=r"'staging\..*'prod\..*own pipeline.*own ledger"):
        before(scene, of("prod", ranges=ranges, **changes))
    assert scene._visible("out") == written
    assert before(scene, of("staging", ranges=ranges)).found


def test_a_clear_is_told_from_a_retry_though_its_task_has_other_retries_now() -> None:
    """Clear numbers are equal, since the scheduler read the edited Dag file later; max_tries differs."""
    scene, again = a_cluster(), spec(on_committed="reprocess")
    first, cleared = ({"task": {"max_tries": tries}} for tries in (0, 1))
    done = before(scene, replace(again, **first))
    assert before(scene, replace(again, **first)).found  # a retry
    repeated = before(scene, replace(again, **cleared))
    assert (repeated.mode, repeated.found) == ("reprocess", False)
    assert before(scene, replace(again, **cleared)).run_key == repeated.run_key
    assert before(scene, again).run_key == done.run_key  # without task details nothing can differ


def test_a_retry_with_fewer_retries_is_no_clear() -> None:
    """Clear numbers are equal; only a clear gives the Dag run another start, and that run is done again."""
    scene, again = a_cluster(), spec(on_committed="reprocess")
    first, cleared = ({"task": {"max_tries": 2, "dag_run_start": day}} for day in ("monday", "tuesday"))
    done = before(scene, replace(again, **first))
    assert before(scene, replace(again, **first, clear_number=1)).run_key == done.run_key
    assert before(scene, replace(again, **cleared, clear_number=1)).mode == "reprocess"


@pytest.mark.parametrize("on_committed", ["reprocess", "fail"])
def test_a_dag_run_that_was_created_again_is_the_same_work_though_a_clear_committed_it(on_committed) -> None:
    """Its task has no clear any more, and so fewer tries than the record; a later clear has more."""
    scene, again = a_cluster(), spec(on_committed=on_committed)
    cleared, created = ({"task": {"max_tries": tries, "dag_run_start": str(tries)}} for tries in (3, 2))
    done = before(scene, replace(again, **cleared, clear_number=1, try_number=2))
    assert before(scene, replace(again, **created)).run_key == done.run_key
    assert before(scene, replace(again, **created, try_number=3)).found


def test_a_clear_after_retries_were_lowered_is_a_clear() -> None:
    """Its number is lower than that of the record, but not lower than the tries behind it."""
    scene, again = a_cluster(), spec(on_committed="reprocess")
    five, two = ({"task": {"max_tries": tries, "dag_run_start": str(tries)}} for tries in (6, 4))
    before(scene, replace(again, **five, clear_number=4, try_number=2))
    assert before(scene, replace(again, **two, clear_number=2, try_number=3)).mode == "reprocess"


def one_round(scene: Scene, its_spec: RunSpec) -> None:
    """Let a run in rounds commit its first round and fail in the second."""

    class Failing(ModelData):
        sent = 0

        def send(self, *arguments: Any) -> Any:
            self.sent += 1
            if self.sent > 1:
                raise SendError("no answer")
            return super().send(*arguments)

    with pytest.raises(RunFailed, match="no answer"):
        before(scene, replace(its_spec, max_send_attempts=1), Failing)


def test_rounds_of_another_environment_are_not_continued() -> None:
    """A round that another environment committed is not counted as read by this one."""
    scene = a_cluster()
    one_round(scene, of("staging", ranges=ROUNDS))
    assert len(scene._visible("out")) == 1
    with pytest.raises(ConfigurationError, match="was committed under transactional id 'staging"):
        before(scene, of("prod", ranges=ROUNDS))
    assert before(scene, of("staging", ranges=ROUNDS)).details["rounds"] == 4


def test_a_reprocessing_of_this_very_work_is_found_under_its_own_id() -> None:
    """A repeated reprocessing finds its own record; another environment's record never counts for it."""
    scene = a_cluster()
    before(scene, spec())
    again = spec(clear_number=1, on_committed="reprocess")
    done = before(scene, again)
    assert (done.mode, done.found) == ("reprocess", False)
    assert before(scene, again).found
    assert len(scene._visible("out")) == 8


def test_work_that_is_committed_before_the_fence_is_reprocessed_under_its_own_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked for when nothing was committed: the fence was that of the run, which moves the cursor."""
    again = spec(clear_number=1, on_committed="reprocess")
    usual, raced = a_cluster(), a_cluster()
    before(usual, spec())
    expected = before(usual, again)
    fence = ModelTransactions.fence

    def second(transactions: Any, name: str) -> Any:
        monkeypatch.setattr(ModelTransactions, "fence", fence)
        before(raced, spec())
        return fence(transactions, name)

    monkeypatch.setattr(ModelTransactions, "fence", second)
    record = before(raced, again)
    assert (record.mode, expected.mode) == ("reprocess", "reprocess")
    assert record.producer.transactional_id == expected.producer.transactional_id
    assert len(raced._visible("out")) == 8


def test_what_was_sealed_under_the_key_of_a_reprocessing_is_not_sent_under_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another clear reprocessed it between two epochs: records name their run and are sealed again."""
    scene = a_cluster()
    before(scene, spec())
    sealed: list[dict[str, str]] = []

    class Interrupted(ModelData):
        """Its first send fails, and before its next epoch another clear does the work."""

        sends = 0

        def seal(self, plan: Any) -> Any:
            sealed.append(dict(plan.headers))
            return super().seal(plan)

        def send(self, *arguments: Any) -> Any:
            self.sends += 1
            if self.sends > 1:
                return super().send(*arguments)
            fence = ModelTransactions.fence

            def second(transactions: Any, name: str) -> Any:
                monkeypatch.setattr(ModelTransactions, "fence", fence)
                before(scene, spec(clear_number=2, on_committed="reprocess"))
                return fence(transactions, name)

            monkeypatch.setattr(ModelTransactions, "fence", second)
            raise SendError("no answer")

    reprocessing = spec(clear_number=1, on_committed="reprocess", mark_output="reprocessed")
    record = before(scene, reprocessing, Interrupted)
    numbers = [headers["eos.reprocessing"] for headers in sealed]
    assert (numbers, record.run_key) == (["1", "2"], sealed[-1]["eos.run"])


def written_by(scene: Scene, its_spec: RunSpec) -> list[str]:
    """Make a run and return what it wrote."""
    earlier = Counter(scene._visible("out"))
    before(scene, its_spec)
    return sorted((Counter(scene._visible("out")) - earlier).elements())


def test_a_reprocessing_leaves_out_what_another_run_read_between_two_rounds() -> None:
    """A run in rounds was interrupted and another one read on: only its own ranges are repeated."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    rounds = spec(ranges=Cursor(max_records=2, until_caught_up=True))
    for number in range(3):
        scene.broker.write_input("src", 0, f"mine{number}")
    one_round(scene, rounds)
    assert written_by(scene, spec("other")) == ["mine2"]
    scene.broker.write_input("src", 0, "late")
    record = before(scene, rounds)
    assert record.ranges == (OffsetRange("src", 0, 0, 2), OffsetRange("src", 0, 3, 4))
    again = replace(rounds, clear_number=1, on_committed="reprocess")
    assert written_by(scene, again) == ["late", "mine0", "mine1"]
    assert scene.broker.groups["group.runs"][TopicPartition("src", 0)].offset == 4


def test_a_run_whose_cursor_was_moved_back_between_two_rounds_ends_and_can_be_reprocessed() -> None:
    """Records that the operator makes it read again form a range of their own; the record stays readable."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    for number in range(6):
        scene.broker.write_input("src", 0, f"r{number}")
    before(scene, spec("earlier", ranges=Explicit((OffsetRange("src", 0, 0, 4),), advance=True)))
    one_round(scene, spec(ranges=Cursor(max_records=1, until_caught_up=True)))
    reset(scene, {TopicPartition("src", 0): 0})
    rounds = spec(ranges=Cursor(max_records=3, until_caught_up=True, max_rounds=2))
    record = before(scene, rounds)
    assert record.ranges == (OffsetRange("src", 0, 0, 3), OffsetRange("src", 0, 4, 5))
    again = replace(rounds, clear_number=1, on_committed="reprocess")
    assert written_by(scene, again) == ["r0", "r1", "r2", "r4"]


@pytest.mark.parametrize("ranges", [Cursor(), EXPLICIT, ROUNDS], ids=["cursor", "explicit", "rounds"])
def test_a_reprocessing_refuses_a_topic_that_was_made_again(ranges: Any) -> None:
    """The recorded offsets belong to the old topic: at these offsets the new one has other records."""
    scene = a_cluster()
    before(scene, spec(ranges=ranges))
    written = scene._visible("out")
    scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")
    with pytest.raises(TopicRecreated, match=r"id-src.*another now.*cannot be read again"):
        before(scene, spec(ranges=ranges, clear_number=1, on_committed="reprocess"))
    assert scene._visible("out") == written


def test_a_reprocessing_refuses_a_topic_that_was_made_again_between_two_rounds() -> None:
    """The offsets of one round belong to the old topic, though the last round read the new one."""
    scene = a_cluster()
    one_round(scene, spec(ranges=ROUNDS))
    scene.broker.topics["src"] = replace(scene.broker.topics["src"], topic_id="another")
    del scene.broker.groups["group"]
    reset(scene, {TopicPartition("src", p): 0 for p in (0, 1)})
    before(scene, spec(ranges=ROUNDS))
    with pytest.raises(TopicRecreated, match="cannot be read again"):
        before(scene, spec(ranges=ROUNDS, clear_number=1, on_committed="reprocess"))


def test_a_record_that_does_not_name_topic_ids_is_reprocessed() -> None:
    """Records of earlier versions are read as before."""
    scene = a_cluster()
    before(scene, spec())
    log = scene.broker.logs[TopicPartition(LEDGER, 0)]
    for offset, entry in enumerate(log):
        if keys.is_run_record(entry.key):
            value = json.loads(entry.value)
            del value["details"]["topic_ids"]
            log[offset] = replace(entry, value=json.dumps(value))
    assert before(scene, spec(clear_number=1, on_committed="reprocess")).mode == "reprocess"
