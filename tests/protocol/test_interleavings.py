"""A search of the run protocol: the real state machine on a model cluster, in all orders, with faults.

``EOS_SEED`` repeats the draw of a deeper search by ``make chaos``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_eos.ledger import authority, keys, pins, writer
from airflow_eos.ledger.records import ledger_index
from airflow_eos.ledger.topic_check import LedgerCheck
from airflow_eos.model.ledger import LedgerView
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.operations import pruner, repair
from airflow_eos.run import boundaries, laws, protocol
from tests.protocol.model import ports, scenes
from tests.protocol.model.broker import LEDGER, OFFSETS, ModelBroker
from tests.protocol.model.explorer import Run, explore
from tests.protocol.model.scenes import Scene, spec, stage

EXECUTIONS = 4_000
DEEPER = 12_000

OUT = TopicPartition("out", 0)
RUNS_IN_LEDGER = TopicPartition(LEDGER, ports.ledger_partition("pipe"))
CURSOR_IN_LEDGER = TopicPartition(LEDGER, ports.ledger_partition("group1"))

SCENES = [
    scenes.alone,
    scenes.twins,
    scenes.successive,
    scenes.cleared,
    scenes.reprocessed,
    scenes.other_dag,
    scenes.explicit,
    scenes.other_ranges,
    scenes.shared_ledger,
    scenes.lost_blocks,
    scenes.empty,
    scenes.upstream_open,
    scenes.foreign_consumer,
    scenes.expiring,
    scenes.intervals,
    scenes.crossing,
    scenes.rounds,
    scenes.indexed,
    scenes.indexed_away,
    scenes.pruned,
    scenes.pruned_twice,
    scenes.dismissed,
    scenes.reset_beside,
    scenes.leader_away(OUT),
    scenes.leader_away(RUNS_IN_LEDGER),
    scenes.leader_away(CURSOR_IN_LEDGER),
    scenes.leader_away(OFFSETS),
    scenes.leader_away(OUT, RUNS_IN_LEDGER),
    scenes.leader_away(OUT, twins=True),
    scenes.repaired(OUT),
    scenes.repaired(RUNS_IN_LEDGER),
]
LONGER = [*SCENES, scenes.pruned_beside, scenes.indexed_twice, scenes.intervals_indexed]


@pytest.mark.search
@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.__name__)
def test_every_interleaving_is_exactly_once(scene: Callable[[Run], Scene]) -> None:
    """Whatever dies, pauses or loses an answer: each input is committed once, and all answers are true."""
    report = explore(scene, deviations=2, executions=EXECUTIONS)
    print(f"{scene.__name__}: {report.executions} schedules, {report.states} states, {report.outcomes}")
    assert report.counter_example is None, f"\n{report.counter_example}"
    assert report.executions > 30
    assert report.exhausted or report.executions == EXECUTIONS
    assert [outcome for outcome in report.outcomes if outcome.endswith(": COMMITTED")]


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scene", LONGER, ids=lambda s: s.__name__)
def test_interleavings_at_random_are_exactly_once(scene: Callable[[Run], Scene]) -> None:
    """With up to three faults or switches, random ones after the first: each seed draws others."""
    seed = int(os.environ.get("EOS_SEED") or random.randrange(1_000_000))
    print(f"EOS_SEED={seed}")
    report = explore(scene, deviations=3, executions=DEEPER, seed=seed)
    assert report.counter_example is None, f"\nEOS_SEED={seed}\n{report.counter_example}"
    assert report.exhausted or report.executions == DEEPER


def _counter_example(scene: Callable[[Run], Scene], deviations: int = 2, *, faults: bool = True) -> str:
    report = explore(scene, deviations=deviations, executions=8_000, faults=faults)
    assert report.counter_example is not None, f"no counter-example in {report.executions} schedules"
    print(report.counter_example)
    return report.counter_example.violation


def test_a_run_that_lost_its_sealed_batches_seals_again() -> None:
    """Without other faults it commits by itself, in its second epoch."""
    report = explore(scenes.lost_blocks, deviations=0, executions=1)
    assert report.counter_example is None
    assert report.outcomes == {"r1: COMMITTED": 1}


def test_law_1_a_second_attempt_of_a_send_task_would_mix_two_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusal, acknowledgements as duplicates hide that two attempts wrote different batches."""
    scene = scenes.with_data(respawns=True)
    assert explore(scene, deviations=1, executions=500).counter_example is None
    monkeypatch.setattr(ports, "refuse_second_attempt", lambda attempt_number: False)
    assert "duplicated" in _counter_example(scene)


def test_law_1_guard_two_receipts_for_one_partition_abort_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard, and with counts unchecked, a partition written twice is committed."""

    class TwoOwners(ports.ModelData):
        def send(self, sealed: Any, identity: Any, timeout: float) -> Any:
            receipts = list(super().send(sealed, identity, timeout))
            return [*receipts, receipts[0]]

    def scene(run: Run) -> Scene:
        return stage(run, [("r1", spec())], data=TwoOwners, closers=[spec(), spec("last")])

    assert explore(scene, deviations=1, executions=500).counter_example is None
    monkeypatch.setattr(laws, "exactly_one_receipt", lambda receipts: None)
    assert "ledger counts" in _counter_example(scene)


def test_law_2_a_superseded_attempt_would_fence_the_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof of ownership a zombie initialises again and aborts its successor's transaction."""
    monkeypatch.setattr(laws, "may_take_epoch", lambda answer: True)
    assert "took it again" in _counter_example(scenes.twins)


def test_law_3_a_no_from_before_the_fence_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second look-up, a run that was committed in between is done again."""
    ask = protocol.RunProtocol._ask

    def only_before_the_fence(self: Any, work: Any, *, fenced: bool) -> Any:
        return None if fenced else ask(self, work, fenced=False)

    monkeypatch.setattr(protocol.RunProtocol, "_ask", only_before_the_fence)
    assert "duplicated" in _counter_example(scenes.explicit)


@pytest.mark.search
def test_law_3_an_index_speaks_for_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that covers a record of an open transaction hides it for ever once that commits."""
    monkeypatch.setattr(ledger_index, "may_speak_for", lambda stable, high: high)
    assert "duplicated" in _counter_example(scenes.indexed)


def test_law_3_a_pruned_record_is_no_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the digests, a run is done again if its record was pruned."""
    monkeypatch.setattr(laws, "not_pruned", lambda run_key, pipeline, values: None)
    assert "duplicated" in _counter_example(scenes.pruned)


def test_law_3_tombstones_leave_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone alone means the same as a missing record: not committed."""
    monkeypatch.setattr(pruner, "_digests", lambda *_: {})
    assert "duplicated" in _counter_example(scenes.pruned)


def test_a_tombstone_without_the_second_look_hides_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone that is staged after the record of an active run is the last value of the key."""
    commit = writer.LedgerTransaction.commit
    monkeypatch.setattr(
        writer.LedgerTransaction, "commit", lambda self, messages, **_: commit(self, messages)
    )
    assert "duplicated" in _counter_example(scenes.dismissed)


def test_a_cursor_that_is_moved_without_its_fence_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an id of its own, the command commits offsets that it read before a run moved the cursor."""
    fenced = writer.LedgerWriter.fenced
    monkeypatch.setattr(
        writer.LedgerWriter, "fenced", lambda self, name, *of, **how: fenced(self, f"{name}.hand", *of, **how)
    )
    assert "duplicated" in _counter_example(scenes.reset_beside)


def test_a_repair_that_takes_a_live_transaction_for_left_open_takes_back_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaders show the transaction of an active run as open, too: only the coordinator tells it apart."""
    monkeypatch.setattr(repair, "_is_under_way", lambda word, producer: False)
    assert "reported success, the ledger does not hold" in _counter_example(scenes.repaired(OUT))


def test_law_3_a_yes_before_the_fence_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the first look-up the clear of an old run fences the live one."""
    ask = protocol.RunProtocol._ask

    def only_after_the_fence(self: Any, work: Any, *, fenced: bool) -> Any:
        return ask(self, work, fenced=fenced) if fenced else None

    monkeypatch.setattr(protocol.RunProtocol, "_ask", only_after_the_fence)
    assert "about to fence the live one" in _counter_example(scenes.cleared)


def test_law_4_counts_gate_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without receipts and proof, a run commits although a writer lost batches unnoticed."""
    scene = scenes.with_data(loses_batch=True)

    def gives_up(run: Run) -> Scene:
        world = scene(run)
        world.closers = []
        check = world.check_end
        world.check_end = lambda: check() if world._visible("out") else None  # type: ignore[method-assign]
        return world

    assert explore(gives_up, deviations=1, executions=500).counter_example is None
    monkeypatch.setattr(laws, "receipts_match", lambda manifest, receipts: None)
    assert explore(gives_up, deviations=1, executions=500).counter_example is None, "the proof alone suffices"
    monkeypatch.setattr(laws, "proof_holds", lambda *args: None)
    assert "lost" in _counter_example(gives_up)


def test_law_5_ranges_end_at_the_last_stable_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading to the high watermark skips records whose transaction is still open."""
    monkeypatch.setattr(laws, "within_log", lambda wanted, log_start, last_stable, mode: None)
    monkeypatch.setattr(
        ports.ModelCluster,
        "last_stable_offsets",
        ports.ModelCluster.log_ends,
    )
    assert "duplicated" in _counter_example(scenes.upstream_open)


def test_law_6_live_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers accept a commit without membership beside live members; only the check refuses it."""
    assert explore(scenes.member_joined, deviations=1, executions=200).counter_example is None
    monkeypatch.setattr(laws, "group_is_empty", lambda group, members: None)
    assert "live members" in _counter_example(scenes.member_joined)


def test_law_6_the_cursor_moves_from_the_plans_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison a run overwrites an offset that another client committed."""
    monkeypatch.setattr(laws, "cursor_unmoved", lambda plan, committed: None)
    assert "committed over" in _counter_example(scenes.foreign_consumer)


def test_law_7_ids_name_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an id per try nothing is fenced, and the zombie's output is published, too."""
    stable = keys.transactional_id
    monkeypatch.setattr(keys, "transactional_id", lambda s: f"{stable(s)}.{s.try_number}")
    monkeypatch.setattr(laws, "same_work", lambda *_, **__: None)
    assert "duplicated" in _counter_example(scenes.explicit)


def test_law_7_a_group_has_one_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the owner check another Dag silently takes records from the cursor it shares."""
    monkeypatch.setattr(laws, "group_is_ours", lambda group, field, recorded, own: None)
    assert "not theirs" in _counter_example(scenes.other_dag)


def test_law_8_an_empty_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its record, an empty run reports a success that no later look-up finds."""
    commit = protocol.RunProtocol._commit

    def only_with_input(self: Any, work: Any, entry: Any, session: Any) -> Any:
        if entry.planned.plan.offsets:
            return commit(self, work, entry, session)
        return entry.record((), session.identity, self._trace.steps)

    monkeypatch.setattr(protocol.RunProtocol, "_commit", only_with_input)
    assert "does not hold" in _counter_example(scenes.empty)


def test_law_9_brokers_without_verification_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without verification a late write of an aborted attempt is published by the next commit."""
    monkeypatch.setattr(laws, "nothing_open", lambda begins: True)  # law 12 detects the late write, too
    monkeypatch.setattr(laws, "begins_with_receipts", lambda *args: None)
    assert explore(scenes.unverified, deviations=3, executions=8_000).counter_example is None
    monkeypatch.setattr(laws, "broker_verifies", lambda verification: None)
    assert "duplicated" in _counter_example(scenes.unverified, deviations=3)


def test_law_10_writers_give_up_before_the_transaction_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, the broker ends a run's transaction while its batches may still be retried."""

    def scene(run: Run) -> Scene:
        impatient = spec(transaction_timeout=dt.timedelta(seconds=60))
        world = stage(run, [("r1", impatient)], closers=[])
        world.check_end = lambda: (  # type: ignore[method-assign]
            "opened a transaction shorter than its writers' delivery time-out"
            if world._visible("out")
            else None
        )
        return world

    assert explore(scene, deviations=1, executions=200).counter_example is None
    monkeypatch.setattr(laws, "timeouts_fit", lambda delivery, transaction, maximum: None)
    assert "shorter" in _counter_example(scene)


def test_law_12_nothing_is_written_behind_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """An omitted marker leaves an aborted attempt open: the next commit would publish its records."""
    monkeypatch.setattr(laws, "nothing_open", lambda begins: True)
    monkeypatch.setattr(laws, "begins_with_receipts", lambda *args: None)
    assert "duplicated ['p0r0']" in _counter_example(scenes.leader_away(OUT))


@pytest.mark.search
def test_law_12_the_proof_finds_what_was_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second guard: such a run is never committed."""
    monkeypatch.setattr(laws, "nothing_open", lambda begins: True)

    def scene(run: Run) -> Scene:
        world = scenes.leader_away(OUT)(run)
        world.check_end = lambda: (  # type: ignore[method-assign]
            "duplicated" if Counter(world._visible("out")) - Counter(world.expected()) else None
        )
        return world

    report = explore(scene, deviations=2, executions=EXECUTIONS)
    assert report.counter_example is None, f"\n{report.counter_example}"


def test_law_12_success_waits_for_the_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator calls a commit complete without markers: success, but no output is visible."""
    monkeypatch.setattr(laws, "over_everywhere", lambda missing: True)
    assert "nobody sees" in _counter_example(scenes.leader_away(OUT))


def test_a_boundary_not_held_between_its_neighbours_would_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late record moves an earlier moment's first offset above a later one's: intervals would overlap."""
    monkeypatch.setattr(boundaries, "_clamped", lambda offsets, moment, neighbours: dict(offsets))
    assert "duplicated" in _counter_example(scenes.crossing)


@pytest.mark.search
def test_boundaries_of_one_topic_are_pinned_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an id per boundary, two are pinned at once without seeing each other, and they cross."""
    pin = pins.Pins.pin
    monkeypatch.setattr(
        pins.Pins, "pin", lambda self, tid, key, *rest, **more: pin(self, f"{tid}.{key}", key, *rest, **more)
    )
    assert "duplicated" in _counter_example(scenes.crossing, faults=False)


@pytest.mark.search
def test_environments_that_share_a_ledger_pin_boundaries_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two prefixes fence each other in the ledger: with the prefix of each run the boundaries cross."""

    def scene(run: Run) -> Scene:
        return scenes.crossing(run, earlier="other")

    report = explore(scene, deviations=2, executions=1_500, faults=False)
    assert report.counter_example is None, f"\n{report.counter_example}"
    verified = LedgerCheck.verified
    monkeypatch.setattr(
        LedgerCheck, "verified", lambda check: dataclasses.replace(verified(check), prefix=check.prefix)
    )
    assert "duplicated" in _counter_example(scene, faults=False)


@pytest.mark.search
def test_a_look_up_that_stops_at_the_last_stable_offset_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another transaction is open in the ledger partition, it misses the committed run above it."""
    view = ModelBroker.ledger_view

    def stops_early(self: ModelBroker, *args: Any) -> Any:
        return dataclasses.replace(view(self, *args), tail=())

    monkeypatch.setattr(ModelBroker, "ledger_view", stops_early)
    assert _counter_example(scenes.shared_ledger)


def test_an_aborted_record_would_answer_for_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the last stable offset only the marker's kind tells; without it, a retry skips undone work."""
    answer_of = authority.answer_of

    def without_kinds(view: LedgerView) -> authority.LedgerAnswer:
        as_commits = [dataclasses.replace(e, kind="commit") if e.kind == "abort" else e for e in view.tail]
        return answer_of(dataclasses.replace(view, tail=tuple(as_commits)))

    monkeypatch.setattr(authority, "answer_of", without_kinds)
    assert "reported success, the ledger does not hold" in _counter_example(scenes.shared_ledger)
