"""Which runs may create or use a ledger: the real look-up on a model cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_eos.exceptions import LedgerMissing, LedgerReplaced, LedgerTruncated
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.pins import Pins
from airflow_eos.ledger.topic_check import LedgerCheck
from airflow_eos.ledger.witnesses import Witnesses
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.kafka import CommittedOffset
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import LedgerSettings, MayCreate, RunSpec
from tests.protocol.model.broker import LEDGER, Entry, Log, ModelBroker
from tests.protocol.model.ports import Clock, ModelCluster, ModelLedger, ModelTransactions
from tests.protocol.model.scenes import Scene, spec
from tests.support.ledger_values import texts

RETRIED = spec(try_number=2)
CLEARED = spec(clear_number=1, try_number=3)


class Plain:
    """Every call is made at once, and nothing else happens: markers are not written."""

    def step(self, name: str, run: Callable[[], Any], faults: Any = (), late: Any = None) -> Any:
        del name, faults, late
        return run()

    def look(self, run: Callable[[], Any]) -> Any:
        return run()


@pytest.fixture
def scene() -> Scene:
    """A ledger topic that was never used."""
    unused = Scene(ModelBroker({"src": 1}))
    forget(unused)
    return unused


def forget(scene: Scene) -> None:
    """Recreate the ledger, empty."""
    for tp in scene.broker.logs:
        if tp.topic == LEDGER:
            scene.broker.logs[tp] = Log()


class Died(BaseException):
    """The process dies."""


def look(
    scene: Scene, wanted: RunSpec, may_create: MayCreate | None = None, *, dies: bool = False
) -> LedgerId:
    """Verify the ledger as an attempt does first; a wait writes the markers, or is where the process dies."""
    run: Any = Plain()

    def sleep(_seconds: float) -> None:
        if dies:
            raise Died
        scene.broker.settle()

    ledger = ModelLedger(run, scene.broker)
    authority = Authority(ledger, sleep=sleep, clock=Clock().monotonic)
    clock = Clock()

    def later(seconds: float) -> None:
        clock.seconds += 1
        sleep(seconds)

    writer = LedgerWriter(
        ModelCluster(run, scene.broker),
        ModelTransactions(run, scene.broker, scene, "attempt"),
        sleep=later,
        clock=clock.monotonic,
    )
    pins = Pins(writer, authority, sleep=sleep)
    witnesses = Witnesses(ModelCluster(run, scene.broker), wanted.prefix, LEDGER, wanted)
    allowed = may_create or wanted.may_create_ledger
    return LedgerCheck(
        ledger, authority, pins, wanted.ledger, wanted.prefix, witnesses=witnesses, may_create=allowed
    ).verified()


@pytest.mark.parametrize("second", [RETRIED, CLEARED, spec(ledger=LedgerSettings(LEDGER, create=False))])
def test_a_second_try_waits_for_the_marker_of_the_first_ones_pin(scene: Scene, second: RunSpec) -> None:
    """The first try committed the ledger's identity and died; its marker is not in the log yet."""
    with pytest.raises(Died):
        look(scene, spec(), dies=True)
    scene.broker.init_producer(keys.ledger_witness_id("eos", LEDGER))
    assert scene.broker.unsettled() == [keys.ledger_transactional_id("eos", LEDGER)]
    assert look(scene, second) == LedgerId("id-ledger", 2, "eos")


def test_a_pin_counts_when_its_marker_is_seen(scene: Scene) -> None:
    """The coordinator calls it committed, but its marker was omitted: the ledger is pinned again."""
    ledger = TopicPartition(LEDGER, 0)
    with pytest.raises(Died):
        look(scene, spec(), dies=True)
    scene.broker.away.add(ledger)
    scene.broker.settle()
    scene.broker.away.clear()
    assert scene.broker.open[ledger]
    assert look(scene, spec()) == LedgerId("id-ledger", 2, "eos")
    assert [key for key, _ in scene.broker.ledger_records()] == [keys.LEDGER_IDENTITY_KEY]


def test_whoever_may_not_makes_no_ledger(scene: Scene) -> None:
    """A topic that was never used as a ledger may be a recreated one that lost its runs."""
    with pytest.raises(LedgerMissing, match="never initialised"):
        look(scene, spec(ledger=LedgerSettings(LEDGER, create=False)))
    with pytest.raises(LedgerMissing, match="never initialised"):
        look(scene, CLEARED)
    assert scene.broker.transactions == {}


def test_a_retry_makes_the_ledger_of_a_first_try_that_died(scene: Scene) -> None:
    """The topic is empty, and neither group nor transactional id shows an earlier use."""
    assert look(scene, RETRIED).topic_id == "id-ledger"


@pytest.mark.parametrize("wanted", [RETRIED, CLEARED])
@pytest.mark.parametrize("open_transaction", [False, True])
def test_a_pin_that_was_begun_is_made_anew(scene: Scene, wanted: RunSpec, open_transaction: bool) -> None:
    """The first attempt died before the commit: this ledger never had a record."""
    died = scene.broker.init_producer(keys.ledger_transactional_id("eos", LEDGER))
    if open_transaction:
        partition = TopicPartition(LEDGER, 0)
        scene.broker.add_partitions(died, [partition])
        scene.broker.produce(died, partition, 0, "{}", keys.LEDGER_IDENTITY_KEY)
    assert look(scene, wanted).topic_id == "id-ledger"


def a_run_used_it(scene: Scene) -> None:
    scene.broker.init_producer(keys.ledger_witness_id("eos", LEDGER))


def its_identity_was_committed(scene: Scene) -> None:
    look(scene, spec())
    scene.broker.settle()


def this_work_was_begun(scene: Scene) -> None:
    scene.broker.init_producer(keys.transactional_id(spec()))


def the_group_names_it(scene: Scene) -> None:
    metadata = keys.offset_metadata(keys.cursor_run_key("pipe", "r0"), 0, "id-before")
    scene.broker.groups["group"] = {TopicPartition("src", 0): CommittedOffset(1, metadata)}


@pytest.mark.parametrize("wanted", [spec(), RETRIED, CLEARED])
@pytest.mark.parametrize(
    "witness", [a_run_used_it, its_identity_was_committed, this_work_was_begun, the_group_names_it]
)
def test_a_ledger_that_somebody_remembers_is_lost_when_it_is_empty(
    scene: Scene, witness: Callable[[Scene], None], wanted: RunSpec
) -> None:
    """Each of these traces is enough, and nothing is pinned."""
    witness(scene)
    forget(scene)
    ids = set(scene.broker.transactions)
    with pytest.raises(LedgerReplaced, match="Restore it"):
        look(scene, wanted)
    assert set(scene.broker.transactions) == ids
    assert look(scene, wanted, MayCreate.ANYWAY).topic_id == "id-ledger"


def test_offsets_of_topics_that_the_run_does_not_read_say_nothing(scene: Scene) -> None:
    """The group may have read other topics before, with another ledger."""
    the_group_names_it(scene)
    scene.broker.groups["group"] = {
        TopicPartition("other", 0): offset for offset in scene.broker.groups["group"].values()
    }
    assert look(scene, spec()).topic_id == "id-ledger"


def test_what_a_cut_partition_lacks_is_not_denied(scene: Scene) -> None:
    """A remaining key is found; a missing one may have been in the deleted part, so the look-up fails."""
    tp = TopicPartition(LEDGER, 0)
    for key, value in {"gone": "1", "left": "2"}.items():
        scene.broker.logs[tp].append(Entry("data", key=key, value=value))
    run: Any = Plain()
    authority = Authority(ModelLedger(run, scene.broker))
    assert texts(authority.settle_in(0, ["gone", "left", "never"])) == {"gone": "1", "left": "2"}
    scene.broker.log_starts[tp] = 1
    assert texts(authority.settle_in(0, ["left"])) == {"left": "2"}
    for key in ("gone", "never"):
        with pytest.raises(LedgerTruncated, match=f"starts at offset 1.*{key}"):
            authority.settle_in(0, ["left", key])
