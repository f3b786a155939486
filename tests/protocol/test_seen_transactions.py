"""How readers tell whether a transaction was committed if neither ledger nor coordinator knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import OutcomeUnknown
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.model.kafka import EndTxnAnswer
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.kill import Kill
from airflow_eos.run.unfinished import UnfinishedEnds, visible_decision
from airflow_eos.run.visibility import Visibility
from tests.protocol.model.broker import LEDGER, OFFSETS, Log, ModelBroker
from tests.protocol.model.explorer import Died
from tests.protocol.model.ports import ModelCluster, ModelLedger, ModelTransactions, ledger_partition
from tests.protocol.model.scenes import Inline, Scene, before, spec

OUT = TopicPartition("out", 0)


def test_a_strangers_record_shows_no_commit() -> None:
    """The topic was recreated, and another client wrote there: its record says nothing about the run's."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "a")
    record = before(scene, spec())
    scene.broker.groups.clear()
    inline: Any = Inline(scene.broker)
    cluster: Any = ModelCluster(inline, scene.broker)
    assert visible_decision(cluster, record) is True
    scene.broker.logs[OUT] = Log()
    scene.broker.write_input("out", 0, "a stranger's")
    assert visible_decision(cluster, record) is None


def ends_of(scene: Scene, ledger: ModelLedger) -> UnfinishedEnds:
    inline: Any = Inline(scene.broker)
    cluster: Any = ModelCluster(inline, scene.broker)
    transactions: Any = ModelTransactions(inline, scene.broker, scene, "next")
    return UnfinishedEnds(spec(), cluster, transactions, ledger, Authority(ledger))


def left_open_beside(unsigned: frozenset[str]) -> EndTxnAnswer | None:
    """End what an earlier attempt left open; no record names it, and the ledger has none of its run.

    :param unsigned: keys of ledger records that lack only a signature, as in the ledger's view.
    """
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    name = keys.transactional_id(spec())
    earlier = scene.broker.init_producer(name)
    scene.broker.add_partitions(earlier, [OUT])
    scene.broker.produce(earlier, OUT, 0, "earlier")
    scene.broker.away.add(OUT)
    scene.broker.end_transaction(earlier, commit=False)
    scene.broker.settle()
    scene.broker.away.clear()
    inline: Any = Inline(scene.broker)

    class Ledger(ModelLedger):
        def view(self, *of: Any, **more: Any) -> Any:
            return replace(super().view(*of, **more), unsigned=unsigned)

    ends = ends_of(scene, Ledger(inline, scene.broker))
    return ends.end(scene.broker.init_producer(name), [OUT])


def test_a_record_that_is_not_signed_may_be_the_commit() -> None:
    """It proves neither commit nor abort: what may be committed is not aborted."""
    assert left_open_beside(frozenset()) is EndTxnAnswer.ENDED
    with pytest.raises(OutcomeUnknown, match="nothing tells whether it was committed"):
        left_open_beside(frozenset({"run:run/pipe/r1"}))


def test_the_open_transaction_of_a_newer_attempt_fences() -> None:
    """Its output and its ledger record are undecided: the older attempt is fenced, and ends nothing."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "a")
    record = before(scene, spec())
    name = keys.transactional_id(spec())
    older, newer = scene.broker.init_producer(name), scene.broker.init_producer(name)
    ledger = TopicPartition(LEDGER, ledger_partition(spec().pipeline))
    scene.broker.add_partitions(newer, [OUT, ledger])
    scene.broker.produce(newer, OUT, 0, "newer")
    undecided = replace(record, producer=newer)
    scene.broker.produce(newer, ledger, 0, undecided.to_json(), keys.run_record_key(record.run_key))
    inline: Any = Inline(scene.broker)
    ends = ends_of(scene, ModelLedger(inline, scene.broker))
    assert ends.end(older, [OUT]) is EndTxnAnswer.FENCED
    assert scene.broker.end_transaction(newer, commit=True) is None


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_pending_offsets_of_a_run_that_died_end_as_its_transaction_did(
    monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    """Nobody led their partition when the coordinator wrote its markers, and it has forgotten them."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    broker, source = scene.broker, TopicPartition("src", 0)
    broker.write_input("src", 0, "a")
    before(scene, spec("r0"))
    broker.write_input("src", 0, "b")

    def dies(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(*((Visibility, "wait") if commits else (Kill, "take_turn")), dies)
        with pytest.raises(Died):
            before(scene, spec("r1"))
    broker.away.add(OFFSETS)
    if not commits:
        broker.init_producer(keys.transactional_id(spec("r1")))
    broker.settle()
    broker.away.clear()
    assert broker.has_pending("group", [source])

    assert before(scene, spec("r2")).records_read == (0 if commits else 1)
    assert not broker.has_pending("group", [source])
    assert broker.groups["group"][source].offset == 2
    assert scene._visible("out") == ["a", "b"]
