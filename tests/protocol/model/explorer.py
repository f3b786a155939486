"""Searches interleavings: runs real code step by step, in every order, with faults at every step.

A *process* is ordinary blocking code whose every call to the outside is one step. A *schedule* says which
process makes the next step and what befalls it. The search starts from the schedule without deviations (each
process runs to its end) and adds deviations one at a time, so the first counter-example it meets is a
shortest one, unless a seed draws the schedules. A state of the whole system met before is not searched again:
what a process will do depends on nothing but the answers it got.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import greenlet


class Fault:
    """What may befall a step, besides nothing."""

    NONE = ""
    FAIL = "request lost"
    LOSE = "answer lost"
    DIE = "dies before"
    DELAY = "request delayed"


class Died(greenlet.GreenletExit):
    """The process was killed: no clean-up of its own runs against the world."""


class Collaborators(Protocol):
    """What is explored: shared state, background events, and an oracle."""

    def fingerprint(self) -> str: ...
    def events(self) -> list[str]: ...
    def fire(self, event: str) -> None: ...
    def check_step(self) -> str | None: ...
    def check_end(self) -> str | None: ...


@dataclass
class Step:
    """One call to the outside."""

    name: str
    run: Callable[[], Any]
    faults: tuple[str, ...]
    late: Callable[[], None] | None = None


@dataclass
class Process:
    name: str
    glet: greenlet.greenlet
    pending: Step | None = None
    history: Any = field(default_factory=hashlib.sha256)
    done: bool = False
    dying: bool = False
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Action:
    """One entry of a schedule."""

    actor: str
    fault: str = Fault.NONE

    def __str__(self) -> str:
        return f"{self.actor}{': ' + self.fault if self.fault else ''}"


class Run:
    """One execution of a scenario under a schedule."""

    def __init__(self, scenario: Callable[[Run], Collaborators]) -> None:
        self.processes: dict[str, Process] = {}
        self.late: dict[str, Callable[[], None]] = {}
        self.narrative: list[str] = []
        self.violation: str | None = None
        self._current: Process | None = None
        self._previous = ""
        self._hub = greenlet.getcurrent()
        self.world = scenario(self)

    # -- used by scenarios and ports --

    def spawn(self, name: str, body: Callable[[], Any]) -> None:
        process = Process(name, greenlet.greenlet(lambda: self._body(process, body), parent=self._hub))
        self.processes[name] = process
        self._resume(process, process.glet.switch)

    def _body(self, process: Process, body: Callable[[], Any]) -> None:
        try:
            process.result = body()
        except Died:
            process.error = None
        except Exception as error:
            process.error = error
        process.done = True

    def step(
        self,
        name: str,
        run: Callable[[], Any],
        faults: tuple[str, ...] = (),
        late: Callable[[], None] | None = None,
    ) -> Any:
        """Make one step of the calling process; called from inside its greenlet."""
        process = self._current
        assert process is not None
        if process.dying:
            # Handlers of the dying process may want to act; the dead do not.
            raise Died
        process.pending = Step(name, run, faults, late)
        return self._hub.switch()

    # -- the scheduler --

    def _resume(self, process: Process, switch: Callable[[], Any]) -> None:
        self._current, process.pending = process, None
        switch()
        self._current = None

    def actions(self) -> list[Action]:
        """Return what can happen next."""
        found = []
        for process in self.processes.values():
            if process.done or process.pending is None:
                continue
            found.append(Action(process.name))
            found.extend(Action(process.name, fault) for fault in process.pending.faults)
        found.extend(Action(f"event {e}") for e in [*self.world.events(), *sorted(self.late)])
        return found

    def default(self, last: str | None, actions: list[Action]) -> Action:
        """Return the action of the schedule without deviations: go on; else the next process, then events."""
        plain = [a for a in actions if not a.fault]
        sleeping = {
            p.name for p in self.processes.values() if p.pending is not None and p.pending.name == "sleep"
        }
        awake = [a for a in plain if a.actor not in sleeping]
        for action in awake:
            if action.actor == last:
                return action
        if last in sleeping:
            # While somebody waits, the coordinator goes on writing markers.
            markers = [a for a in plain if a.actor.startswith("event markers")]
            if markers:
                return markers[0]
            if self._previous.startswith("event markers"):
                return next(a for a in plain if a.actor == last)
        for group in (
            [a for a in awake if not a.actor.startswith("event ")],
            [a for a in plain if a.actor.startswith("event ") and not a.actor.startswith("event time-out")],
            plain,
        ):
            if group:
                return group[0]
        raise AssertionError("nothing can happen")

    def perform(self, action: Action) -> None:
        self._previous = action.actor
        if action.actor.startswith("event "):
            event = action.actor.removeprefix("event ")
            self.narrative.append(f"        {event}")
            if event in self.late:
                self.late.pop(event)()
            else:
                self.world.fire(event)
        else:
            self._perform_step(self.processes[action.actor], action.fault)
        self.violation = self.world.check_step()

    def _perform_step(self, process: Process, fault: str) -> None:
        step = process.pending
        assert step is not None
        self.narrative.append(f"{process.name}: {step.name}{f'   <-- {fault}' if fault else ''}")
        process.history.update(f"{step.name}|{fault}|".encode())
        if fault == Fault.DIE:
            process.dying = True
            self._resume(process, lambda: process.glet.throw(Died))
            process.done = True
            return
        if fault == Fault.DELAY:
            assert step.late is not None
            self.late[f"late {process.name} {step.name}"] = step.late
        outcome: Any = None
        error: BaseException | None = None
        if fault in (Fault.NONE, Fault.LOSE):
            try:
                outcome = step.run()
            except Exception as raised:
                error = raised
        if fault != Fault.NONE:
            error = TimeoutError(f"{step.name}: {fault}")
        process.history.update(repr((outcome, error)).encode())
        if error is not None:
            self._resume(process, lambda: process.glet.throw(error))
        else:
            self._resume(process, lambda: process.glet.switch(outcome))

    def key(self, last: str | None) -> bytes:
        parts = [
            f"{p.name}:{p.done}:{p.history.hexdigest()}:{p.pending.name if p.pending else ''}"
            for p in self.processes.values()
        ]
        text = "|".join(
            [self.world.fingerprint(), *parts, *sorted(self.late), str(last), self._previous[:13]]
        )
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def close(self) -> None:
        """End processes that are still waiting, without letting them act."""
        for process in self.processes.values():
            if not process.glet.dead:
                self._current, process.dying = process, True
                process.glet.throw(Died)


@dataclass(frozen=True)
class CounterExample:
    """A schedule that breaks the promise."""

    violation: str
    narrative: tuple[str, ...]
    deviations: int

    def __str__(self) -> str:
        lines = "\n".join(f"  {i:3d}  {line}" for i, line in enumerate(self.narrative, 1))
        return f"{self.violation}, after {self.deviations} deviation(s) from the plain order:\n{lines}"


@dataclass
class Report:
    executions: int = 0
    states: int = 0
    exhausted: bool = False
    counter_example: CounterExample | None = None
    outcomes: dict[str, int] = field(default_factory=dict)


def explore(
    scenario: Callable[[Run], Collaborators],
    *,
    deviations: int,
    executions: int,
    faults: bool = True,
    seed: int | None = None,
    max_steps: int = 600,
) -> Report:
    """Search all schedules with at most ``deviations`` deviations, breadth first.

    :param faults: also let steps fail, lose their answer, or kill; False searches orders only.
    :param executions: stop after so many; the report says whether the search was exhaustive.
    :param seed: after all schedules with one deviation, take the next ones at random: a search that is
        stopped has seen others with another seed.
    """
    report = Report()
    visited: set[bytes] = set()
    queue: deque[tuple[tuple[int, Action], ...]] = deque([()])
    random = None if seed is None else Random(seed)
    while queue:
        if report.executions >= executions:
            return report
        if random is not None and len(queue[0]) > 1:
            drawn = random.randrange(len(queue))
            queue[0], queue[drawn] = queue[drawn], queue[0]
        planned = queue.popleft()
        report.executions += 1
        for alternative in _execute(scenario, planned, deviations, visited, report, max_steps, faults=faults):
            queue.append(alternative)
        if report.counter_example is not None:
            return report
    report.exhausted = True
    return report


def _execute(
    scenario: Callable[[Run], Collaborators],
    planned: tuple[tuple[int, Action], ...],
    deviations: int,
    visited: set[bytes],
    report: Report,
    max_steps: int,
    *,
    faults: bool,
) -> Iterator[tuple[tuple[int, Action], ...]]:
    run = Run(scenario)
    at = dict(planned)
    last_planned = planned[-1][0] if planned else -1
    last: str | None = None
    found: list[tuple[tuple[int, Action], ...]] = []
    try:
        for index in range(max_steps):
            actions = run.actions()
            if not any(not a.actor.startswith("event time-out") for a in actions):
                break
            if index > last_planned:
                key = run.key(last)
                if key in visited:
                    return iter(found)
                visited.add(key)
                report.states += 1
                if len(planned) < deviations:
                    chosen = run.default(last, actions)
                    found.extend(
                        (*planned, (index, action))
                        for action in actions
                        if action != chosen and (faults or not action.fault)
                    )
            action = at.get(index) or run.default(last, actions)
            run.perform(action)
            if not action.actor.startswith("event ") and not run.processes[action.actor].done:
                last = action.actor
            if run.violation is not None:
                break
        else:
            run.violation = f"no end after {max_steps} steps"
        violation = run.violation or run.world.check_end()
        for process in run.processes.values():
            label = f"{process.name}: {_outcome(process)}"
            report.outcomes[label] = report.outcomes.get(label, 0) + 1
        if violation is not None:
            report.counter_example = CounterExample(violation, tuple(run.narrative), len(planned))
    finally:
        run.close()
    return iter(found)


def _outcome(process: Process) -> str:
    if process.error is not None:
        return type(process.error).__name__
    return "died" if process.result is None else str(getattr(process.result, "state", process.result))
