"""The writer of ledger records outside runs, on a model cluster: what it ends, what it never publishes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.exceptions import NotYetVisible, OutcomeUnknown, RunFenced
from airflow_eos.ledger import writer as module
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.kafka import EndTxnAnswer, ProducerIdentity, TransactionState
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition
from tests.protocol.model.broker import LEDGER, ModelBroker
from tests.protocol.model.ports import Clock, ModelCluster, ModelTransactions
from tests.protocol.model.scenes import Inline, Scene

ID, PLACE = "eos.ledger.ledger", TopicPartition(LEDGER, 0)


class Hand:
    """A command that writes to the ledger of a scene; ``sleeps`` counts its waits."""

    def __init__(self) -> None:
        self.scene = Scene(ModelBroker({"src": 1}))
        self.broker, clock = self.scene.broker, Clock()
        inline: Any = Inline(self.broker)
        self.transactions = ModelTransactions(inline, self.broker, self.scene, "hand")

        def sleep(_seconds: float) -> None:
            clock.seconds += 1

        self.cluster = ModelCluster(inline, self.broker)
        self.writer = LedgerWriter(self.cluster, self.transactions, sleep=sleep, clock=clock.monotonic)

    def write(self, key: str, value: str | None = "ours", **how: Any) -> ProducerIdentity:
        with self.writer.fenced(ID, [PLACE], **how) as transaction:
            transaction.commit([LedgerMessage(key, value, "", 0)])
            self.broker.settle()
            transaction.wait_until_seen()
        return transaction.identity

    def leave_open(self, *, commit: bool = False, transactional_id: str = ID) -> None:
        """An earlier command stages a record; no leader gets the end, and the coordinator forgets it."""
        earlier = self.broker.init_producer(transactional_id)
        self.broker.add_partitions(earlier, [PLACE])
        self.broker.produce(earlier, PLACE, 0, "earlier", "aborted")
        self.broker.away.add(PLACE)
        self.broker.end_transaction(earlier, commit=commit)
        self.broker.settle()
        self.broker.away.clear()
        assert self.broker.open[PLACE]

    def visible(self) -> dict[str, str | None]:
        return {e.key: e.value for _, e in self.broker.committed_entries(PLACE) if e.producer_id >= 0}


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_what_an_earlier_command_left_open_is_never_published(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is aborted first; else the next marker of the id would decide it, too (KAFKA-20734)."""
    hand.leave_open()
    hand.write("new")
    assert hand.visible() == {"new": "ours"}
    hand.leave_open()
    monkeypatch.setattr(module, "open_of", lambda *_: {})
    hand.write("newer")
    assert hand.visible() == {"new": "ours", "newer": "ours", "aborted": "earlier"}, "the counter-test"


def test_what_runs_left_open_is_refused_before_the_fence(hand: Hand) -> None:
    """Only a run finds out how it was decided, from the coordinator's answer, which must stay."""
    hand.leave_open(commit=True)
    with pytest.raises(OutcomeUnknown, match=r"ledger-0: an earlier transaction of eos.ledger"):
        hand.write("new", may_end=False)
    word = hand.broker.describe_transaction(ID)
    assert word is not None
    assert (word.state, word.producer_epoch) == (TransactionState.COMPLETE_COMMIT, 0)
    assert "new" not in hand.visible()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_before_the_commit_aborts(hand: Hand, error: type[BaseException]) -> None:
    """No reader has to wait for a time-out, and nothing is visible; the same after Ctrl-C."""

    def refuse(offsets: Any) -> None:
        assert hand.broker.logs[PLACE][offsets[0]].key == "new"
        raise error("not this")

    with pytest.raises(error, match="not this"), hand.writer.fenced(ID, [PLACE]) as transaction:
        transaction.commit([LedgerMessage("new", "ours", "", 0)], check=refuse)
    hand.broker.settle()
    assert not hand.broker.open[PLACE]
    assert hand.visible() == {}


def test_a_commit_that_no_leader_shows_is_no_success(hand: Hand) -> None:
    """The coordinator calls it complete, but the next write of the id aborts it: it cannot be relied on."""
    with hand.writer.fenced(ID, [PLACE]) as transaction:
        transaction.commit([LedgerMessage("new", "ours", "", 0)])
        hand.broker.away.add(PLACE)
        hand.broker.settle()
        hand.broker.away.clear()
        with pytest.raises(NotYetVisible, match=r"ledger-0 still holds it for open.*airflow eos repair"):
            transaction.wait_until_seen()


def test_one_that_was_fenced_meanwhile_takes_no_other_epoch(hand: Hand) -> None:
    """Law 2: once an answer says so, no other request follows."""
    hand.leave_open()
    hand.transactions.abort_again = lambda *_: EndTxnAnswer.FENCED  # type: ignore[method-assign]
    with pytest.raises(RunFenced, match="taken by another"):
        hand.write("new")


@pytest.mark.parametrize("may_end", [True, False])
def test_the_open_transaction_of_a_newer_writer_is_not_left_open(hand: Hand, may_end: bool) -> None:
    """It began after our fence: this writer is fenced, and the newer one commits."""
    fence = hand.transactions.fence
    newer: list[ProducerIdentity] = []

    def fence_and_lose(transactional_id: str) -> Any:
        session = fence(transactional_id)
        newer.append(hand.broker.init_producer(transactional_id))
        hand.broker.add_partitions(newer[0], [PLACE])
        hand.broker.produce(newer[0], PLACE, 0, "newer's", "new")
        return session

    hand.transactions.fence = fence_and_lose  # type: ignore[method-assign]
    with pytest.raises(RunFenced, match="taken by another"):
        hand.write("new", may_end=may_end)
    hand.broker.end_transaction(newer[0], commit=True)
    hand.broker.settle()
    assert hand.visible() == {"new": "newer's"}


def test_a_run_that_begins_while_a_command_looks_is_not_left_open(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command described the id before that run: the fence ends its transaction, as that of any run."""
    hand.write("old")
    look = module.open_of

    def begin_and_look(*of: Any) -> Any:
        monkeypatch.setattr(module, "open_of", look)
        run = hand.broker.init_producer(ID)
        hand.broker.add_partitions(run, [PLACE])
        hand.broker.produce(run, PLACE, 0, "run's", "run")
        return look(*of)

    monkeypatch.setattr(module, "open_of", begin_and_look)
    hand.write("new", may_end=False)
    assert hand.visible() == {"old": "ours", "new": "ours"}
