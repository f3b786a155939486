"""Who may use a ledger, and from when on: the real look-up on a model cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_eos.exceptions import LedgerMissing
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.authority import Authority
from airflow_eos.run.ledger_identity import KnownLedger, verify
from airflow_eos.run.pins import Pins
from tests.run.model.broker import LEDGER, ModelBroker
from tests.run.model.ports import Clock, ModelLedger, ModelTransactions
from tests.run.model.scenes import Scene, spec


class Plain:
    """Every call is made at once, and nothing else happens: markers stay unwritten."""

    def step(self, name: str, run: Callable[[], Any], faults: Any = (), late: Any = None) -> Any:
        del name, faults, late
        return run()


@pytest.fixture
def scene() -> Scene:
    """A ledger topic that nobody has used."""
    found = Scene(ModelBroker({"src": 1}))
    for where, entries in found.broker.logs.items():
        if where.topic == LEDGER:
            entries.clear()
    return found


class Died(BaseException):
    """The process ends."""


def look(scene: Scene, *, may_create: bool, dies: bool = False) -> KnownLedger:
    """As an attempt begins; whoever waits sees the markers come, unless it dies there."""
    run: Any = Plain()

    def sleep(_seconds: float) -> None:
        if dies:
            raise Died
        scene.broker.settle()

    ledger = ModelLedger(run, scene.broker)
    authority = Authority(ledger, sleep=sleep, clock=Clock().monotonic)
    pins = Pins(ModelTransactions(run, scene.broker, scene, "attempt"), authority, sleep=sleep)
    wanted = spec()
    return verify(ledger, authority, pins, wanted.ledger, wanted.prefix, may_create=may_create)


def test_a_retry_waits_for_the_marker_of_the_first_tries_pin(scene: Scene) -> None:
    """The first try has committed the ledger's identity and dies; its marker is not in the log yet."""
    with pytest.raises(Died):
        look(scene, may_create=True, dies=True)
    assert scene.broker.unsettled() == ["eos.ledger.ledger"]
    assert look(scene, may_create=False) == KnownLedger("id-ledger", 2, "eos")


def test_a_pin_counts_when_its_marker_is_seen(scene: Scene) -> None:
    """The coordinator says that it is committed, and has left the marker out: it is pinned again."""
    ledger = TopicPartition(LEDGER, 0)
    with pytest.raises(Died):
        look(scene, may_create=True, dies=True)
    scene.broker.away.add(ledger)
    scene.broker.settle()
    scene.broker.away.clear()
    assert scene.broker.open[ledger]
    assert look(scene, may_create=True) == KnownLedger("id-ledger", 2, "eos")
    assert [key for key, _ in scene.broker.ledger_records()] == ["ledger:identity"]


def test_a_retry_makes_no_ledger(scene: Scene) -> None:
    """A topic that nobody has used as a ledger may be one that lost its runs."""
    with pytest.raises(LedgerMissing, match="never initialised"):
        look(scene, may_create=False)
    assert scene.broker.transactions == {}
