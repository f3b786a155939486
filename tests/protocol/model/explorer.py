"""Searches interleavings: runs real code step by step, in every order, with faults at every step.

A *process* is ordinary blocking code whose every call to the outside is one step. A *schedule* says which
process makes the next step and what befalls it. The search starts from the schedule without deviations (each
process runs to its end) and adds deviations one at a time, so the first counter-example it meets is a
shortest one, unless a seed draws the schedules. A state of the whole system met before is not searched again:
what a process will do depends on nothing but the answers it got.

A process cannot be copied in the middle, so each execution begins anew and repeats the one that it varies.
What was hashed there, how the scene was prepared and what the oracle answered is not computed again: see
:class:`Schedule` and :class:`Common`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
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

    def fingerprint(self) -> str:
        """Return all that a step or the oracle may depend on, except for the answers that processes got."""

    def events(self) -> list[str]:
        """Return what can happen by itself; this changes nothing, for it is not asked in a repetition."""

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
    history: bytes = b""
    """Digest of the answers it got."""
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


@dataclass(frozen=True, slots=True)
class Schedule:
    """An execution to make: another one up to some action, then a deviation from it, then the plain order.

    :param actions: what the other execution did; ``length`` of these are repeated.
    :param deviations: how many of the actions that will be made deviate from the plain order.
    :param histories: what the processes have heard before the deviation, in their order.
    """

    actions: tuple[Action, ...] = ()
    length: int = 0
    deviation: Action | None = None
    deviations: int = 0
    histories: tuple[bytes, ...] = ()


@dataclass
class Common:
    """What the executions of one search have in common.

    :param prepared: what the scenario does before the processes begin, in order, with its outcome.
    :param sound: fingerprints of worlds that the oracle accepted at the end of an execution.
    """

    prepared: list[Any] = field(default_factory=list)
    sound: set[str] = field(default_factory=set)


class Run:
    """One execution of a scenario under a schedule."""

    def __init__(self, scenario: Callable[[Run], Collaborators], common: Common) -> None:
        self.common = common
        self.processes: dict[str, Process] = {}
        self.late: dict[str, Callable[[], None]] = {}
        self.narrative: list[str] = []
        self.violation: str | None = None
        self._current: Process | None = None
        self.taken: list[Action] = []
        self._last: str | None = None
        """The process that made the last step, of those that did not end with it."""
        self._previous = ""
        self._repeats = False
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

    def default(self, actions: list[Action]) -> Action:
        """Return the action of the schedule without deviations: go on; else the next process, then events."""
        plain = [a for a in actions if not a.fault]
        sleeping = {
            p.name for p in self.processes.values() if p.pending is not None and p.pending.name == "sleep"
        }
        awake = [a for a in plain if a.actor not in sleeping]
        for action in awake:
            if action.actor == self._last:
                return action
        if self._last in sleeping:
            # While somebody waits, the coordinator goes on writing markers.
            markers = [a for a in plain if a.actor.startswith("event markers")]
            if markers:
                return markers[0]
            if self._previous.startswith("event markers"):
                return next(a for a in plain if a.actor == self._last)
        for group in (
            [a for a in awake if not a.actor.startswith("event ")],
            [a for a in plain if a.actor.startswith("event ") and not a.actor.startswith("event time-out")],
            plain,
        ):
            if group:
                return group[0]
        raise AssertionError("nothing can happen")

    def repeat(self, schedule: Schedule) -> None:
        """Perform the schedule; what is repeated is not hashed again."""
        self._repeats = True
        for action in schedule.actions[: schedule.length]:
            self.perform(action)
        self._repeats = False
        if schedule.deviation is not None:
            for process, history in zip(self.processes.values(), schedule.histories, strict=True):
                process.history = history
            self.perform(schedule.deviation)

    def perform(self, action: Action) -> None:
        """Make the next step, or let an event happen."""
        self._previous = action.actor
        if action.actor.startswith("event "):
            event = action.actor.removeprefix("event ")
            self.narrative.append(f"        {event}")
            if event in self.late:
                self.late.pop(event)()
            else:
                self.world.fire(event)
        else:
            process = self.processes[action.actor]
            self._perform_step(process, action.fault)
            if not process.done:
                self._last = action.actor
        self.taken.append(action)
        self.violation = self.world.check_step()

    def _perform_step(self, process: Process, fault: str) -> None:
        step = process.pending
        assert step is not None
        self.narrative.append(f"{process.name}: {step.name}{f'   <-- {fault}' if fault else ''}")
        self._note(process, step.name, fault)
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
        self._note(process, outcome, error)
        if error is not None:
            self._resume(process, lambda: process.glet.throw(error))
        else:
            self._resume(process, lambda: process.glet.switch(outcome))

    def _note(self, process: Process, *heard: object) -> None:
        if not self._repeats:
            process.history = hashlib.blake2b(process.history + repr(heard).encode(), digest_size=16).digest()

    def key(self) -> bytes:
        parts = [
            f"{p.name}:{p.done}:{p.history.hex()}:{p.pending.name if p.pending else ''}"
            for p in self.processes.values()
        ]
        text = "|".join(
            [self.world.fingerprint(), *parts, *sorted(self.late), str(self._last), self._previous[:13]]
        )
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def judge(self) -> str | None:
        """Ask the oracle at the end, unless it accepted this world before."""
        world = self.world.fingerprint()
        violation = None if world in self.common.sound else self.world.check_end()
        if violation is None:
            self.common.sound.add(world)
        return violation

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
    search = _Search(scenario, deviations, max_steps, faults=faults)
    queue = deque([Schedule()])
    random = None if seed is None else Random(seed)
    while queue:
        if search.report.executions >= executions:
            return search.report
        if random is not None and queue[0].deviations > 1:
            drawn = random.randrange(len(queue))
            queue[0], queue[drawn] = queue[drawn], queue[0]
        queue.extend(search.execute(queue.popleft()))
        if search.report.counter_example is not None:
            return search.report
    search.report.exhausted = True
    return search.report


class _Search:
    """Makes executions, and remembers the states that they met."""

    def __init__(
        self, scenario: Callable[[Run], Collaborators], deviations: int, max_steps: int, *, faults: bool
    ) -> None:
        self.report = Report()
        self._scenario, self._deviations = scenario, deviations
        self._max_steps, self._faults = max_steps, faults
        self._common = Common()
        self._visited: set[bytes] = set()

    def execute(self, schedule: Schedule) -> list[Schedule]:
        """Make an execution until everything is done or a known state is met; return its variations."""
        self.report.executions += 1
        run = Run(self._scenario, self._common)
        branches: list[tuple[int, Action, tuple[bytes, ...]]] = []
        try:
            run.repeat(schedule)
            if self._goes_on_to_the_end(run, schedule, branches):
                self._judge(run, schedule)
        finally:
            run.close()
        actions, deviations = tuple(run.taken), schedule.deviations + 1
        return [
            Schedule(actions, length, action, deviations, histories) for length, action, histories in branches
        ]

    def _goes_on_to_the_end(
        self, run: Run, schedule: Schedule, branches: list[tuple[int, Action, tuple[bytes, ...]]]
    ) -> bool:
        """Go on in the plain order; note what else could be done, in each state that is new.

        :returns: False where a known state is met: what follows was searched.
        """
        while run.violation is None and len(run.taken) < self._max_steps:
            actions = run.actions()
            if not any(not action.actor.startswith("event time-out") for action in actions):
                return True
            key = run.key()
            if key in self._visited:
                return False
            self._visited.add(key)
            self.report.states += 1
            chosen = run.default(actions)
            if schedule.deviations < self._deviations:
                histories = tuple(process.history for process in run.processes.values())
                branches.extend(
                    (len(run.taken), action, histories)
                    for action in actions
                    if action != chosen and (self._faults or not action.fault)
                )
            run.perform(chosen)
        if run.violation is None:
            run.violation = f"no end after {self._max_steps} steps"
        return True

    def _judge(self, run: Run, schedule: Schedule) -> None:
        violation = run.violation or run.judge()
        for process in run.processes.values():
            label = f"{process.name}: {_outcome(process)}"
            self.report.outcomes[label] = self.report.outcomes.get(label, 0) + 1
        if violation is not None:
            self.report.counter_example = CounterExample(violation, tuple(run.narrative), schedule.deviations)


def _outcome(process: Process) -> str:
    if process.error is not None:
        return type(process.error).__name__
    return "died" if process.result is None else str(getattr(process.result, "state", process.result))
