"""A search of kills: at every step of every order, nothing is committed after the call has returned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_eos.exceptions import OutcomeUnknown, RunFailed
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import Cursor
from airflow_eos.run.kill import Kill, KillBudget
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.states import State
from tests.protocol.model import ports
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.explorer import Run, explore
from tests.protocol.model.scenes import Inline, Scene, spec, stage
from tests.support.cases import rest_in_chaos

ROUNDS = Cursor(max_records=2, until_caught_up=True)


def killed_at_any_step(
    monkeypatch: pytest.MonkeyPatch, given_spec: Any = None, *, records: int = 1, deciding: bool = True
) -> Callable[[Run], Scene]:
    """A scene of one attempt, and a call from another thread that kills it at any moment.

    :param deciding: the coordinator answers the abort; otherwise the call returns without an answer.
    """

    def scene(run: Run) -> Scene:
        kill = Kill()
        protocols: list[RunProtocol] = []

        def make_protocol(run_spec: Any, world: Any) -> RunProtocol:
            r1 = run.processes.get("r1")
            if r1 is not None and r1.done:  # the attempts after it
                return RunProtocol(run_spec, world)
            protocols.append(RunProtocol(run_spec, world, kill=kill))
            return protocols[-1]

        monkeypatch.setattr(ports, "RunProtocol", make_protocol)

        def prepare(scene: Scene) -> None:
            end = scene.broker.end_transaction
            returned = False

            def ended(identity: ProducerIdentity, *, commit: bool) -> Any:
                answer = end(identity, commit=commit)
                if commit and answer is None and returned and identity in [p.producer for p in protocols]:
                    scene.broken = "committed after the kill had returned"
                return answer

            def killing() -> None:
                nonlocal returned
                if scene.processes["r1"].done:
                    return
                kill.ask()
                producer = protocols[-1].producer if protocols else None
                if producer is not None and deciding:
                    end(producer, commit=False)
                # Without an answer to the abort, the call waits for a commit under way, which may succeed.
                pending = scene.processes["r1"].pending
                returned = deciding or pending is None or pending.name != "commit"

            scene.broker.end_transaction = ended  # type: ignore[method-assign]
            scene.once["kill"] = killing

        return stage(
            run,
            [("r1", given_spec or spec())],
            closers=[given_spec or spec(), spec("last")],
            prepare=prepare,
            records=records,
        )

    return scene


@pytest.mark.search
@pytest.mark.parametrize("deciding", rest_in_chaos(1, [True, False]))
@pytest.mark.parametrize(
    ("given_spec", "records"),
    [(None, 1), (None, 0), (spec(ranges=ROUNDS), 2)],
    ids=["full", "empty", "rounds"],
)
def test_nothing_is_committed_after_a_kill_returned(
    monkeypatch: pytest.MonkeyPatch, given_spec: Any, records: int, deciding: bool
) -> None:
    """At any step, with another fault; the next attempt does the work, exactly once."""
    report = explore(
        killed_at_any_step(monkeypatch, given_spec, records=records, deciding=deciding),
        deviations=2,
        executions=1_300,
        afresh=True,  # a kill is no answer, and changes what the attempt does
    )
    print(f"{report.executions} schedules, {report.states} states, {report.outcomes}")
    assert report.counter_example is None, f"\n{report.counter_example}"
    assert {"r1: COMMITTED", "r1: RunFailed"} <= {*report.outcomes}


def test_a_kill_that_only_aborts_would_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check before each state, a run continues after the call."""
    monkeypatch.setattr(Kill, "check", lambda _self: None)
    report = explore(killed_at_any_step(monkeypatch), deviations=1, executions=3_000, afresh=True)
    assert report.counter_example is not None
    assert "committed after the kill had returned" in report.counter_example.violation


def test_a_look_before_the_commit_alone_would_come_too_late() -> None:
    """A kill between the last look and the commit: who takes the turn first must decide."""
    kill = Kill()
    kill.take_turn()
    began = time.monotonic()
    with kill.turn_taken():
        kill.ask()
        kill.await_commit(0.2)
    assert time.monotonic() - began >= 0.2, "a commit is under way"
    for _ in range(2):
        with pytest.raises(RunFailed, match="killed"):
            kill.take_turn()
    kill.await_commit(60)  # no commit is under way, so it does not wait
    kill.await_commit(60)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "state",
    # For those of a table see test_table_runs.py.
    [
        state
        for state in State
        if state not in (State.ABORTED, State.UNKNOWN, State.COMMITTED, State.INTENT, State.PUBLISHED)
    ],
)
def test_a_kill_at_each_state_ends_the_attempt_there(monkeypatch: pytest.MonkeyPatch, state: State) -> None:
    """No later state of the way to the commit is entered, and no other epoch is taken."""
    entered: list[State] = []

    def make_protocol(run_spec: Any, world: Any) -> RunProtocol:
        def on_state(at: State) -> None:
            entered.append(at)
            if at is state:
                protocol.kill()

        protocol = RunProtocol(run_spec, world, on_state)
        return protocol

    monkeypatch.setattr(ports, "RunProtocol", make_protocol)
    broker = ModelBroker({"src": 2, "out": 2})
    broker.write_input("src", 0, "a")
    scene = Scene(broker)
    with pytest.raises((RunFailed, OutcomeUnknown), match="killed"):
        ports.attempt(Inline(broker), scene, "only", spec())()  # type: ignore[arg-type]
    way = entered[: entered.index(state) + 1]
    assert entered in (way, [*way, State.ABORTED])
    assert entered.count(State.FENCED) <= 1
    assert scene._visible("out") == []
    assert not any(keys.is_run_record(key) for key in broker.committed_keys())


def test_a_kill_behind_the_last_state_is_seen_by_whoever_takes_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at the state and the commit: the call has returned, and nothing may follow."""
    take_turn = Kill.take_turn

    def late(kill: Kill) -> None:
        kill.ask()
        take_turn(kill)

    monkeypatch.setattr(Kill, "take_turn", late)
    broker = ModelBroker({"src": 2, "out": 2})
    broker.write_input("src", 0, "a")
    scene = Scene(broker)
    with pytest.raises(RunFailed, match="killed"):
        ports.attempt(Inline(broker), scene, "only", spec())()  # type: ignore[arg-type]
    assert scene._visible("out") == []


def test_a_kill_while_the_answer_of_the_commit_is_missing_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run may be committed: its task must not be told that it is not."""

    def make_protocol(run_spec: Any, world: Any) -> RunProtocol:
        def on_state(at: State) -> None:
            if at is State.UNKNOWN:
                protocol.kill()

        protocol = RunProtocol(run_spec, world, on_state)
        return protocol

    commit = ports.ModelSession.commit

    def loses_the_answer(session: ports.ModelSession) -> None:
        commit(session)
        raise TimeoutError("no answer")

    monkeypatch.setattr(ports, "RunProtocol", make_protocol)
    monkeypatch.setattr(ports.ModelSession, "commit", loses_the_answer)
    broker = ModelBroker({"src": 2, "out": 2})
    broker.write_input("src", 0, "a")
    scene = Scene(broker)
    with pytest.raises(OutcomeUnknown, match="killed while it committed"):
        ports.attempt(Inline(broker), scene, "only", spec())()  # type: ignore[arg-type]
    assert scene._visible("out") == ["a"]


def test_a_slow_step_leaves_less_for_the_next() -> None:
    """All steps share one budget, which never falls below zero."""
    now = 100.0
    budget = KillBudget(4.0, clock=lambda: now)
    given: list[float] = []
    budget.spend(given.append)
    now = 103.0
    budget.spend(given.append)
    assert given == [4.0, 1.0]
    assert budget.left(keep=0.25) == 0.75
    now = 109.0
    assert budget.left() == budget.left(keep=1.0) == 0.0


def test_steps_that_hang_or_fail_hold_up_nothing() -> None:
    """They delay neither the call nor the step beside them."""
    goes_on, ended = threading.Event(), threading.Event()

    def fails(_left: float) -> None:
        raise OSError("no broker")

    budget = KillBudget(0.3)
    budget.spend(lambda _: goes_on.wait(), fails, lambda _: ended.set())
    budget.spend(lambda _: goes_on.wait())
    assert ended.wait(60)
    goes_on.set()
