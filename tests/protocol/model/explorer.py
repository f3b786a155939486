"""Searches interleavings: runs real code step by step, in every order, with faults at every step.

A *process* is ordinary blocking code in which each external call is one step. A *schedule* says which
process makes the next step and which fault it meets. The search starts from the schedule without deviations
(each process runs to its end) and adds deviations one at a time, so the first counter-example it finds is a
shortest one, unless a seed draws the schedules. A known state of the whole system is not searched again: what
a process will do depends only on the answers it got and the times at which it got them.

For the same reason its code runs once for the same answers: see :class:`Point`. A schedule continues from the
state of the world in which it deviates from the one before it: see :meth:`Run.repeat`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Protocol

import greenlet

from airflow_eos.exceptions import EosError
from tests.protocol.model.broker import BrokerTimeout

EXPECTED = (EosError, TimeoutError, BrokerTimeout)
"""What a process may end with; any other exception ends the search."""


class Fault:
    """What may go wrong in a step."""

    NONE = ""
    FAIL = "request lost"
    LOSE = "answer lost"
    DIE = "dies before"
    DELAY = "request delayed"


class Died(greenlet.GreenletExit):
    """The process was killed: its own clean-up must not act on the world."""


class HasTime(Protocol):
    seconds: float


class Collaborators(Protocol):
    """What is explored: shared state, background events, and an oracle."""

    clock: HasTime
    """The one thing that processes may read outside a step."""

    def fingerprint(self) -> str:
        """Return all that a step or the oracle may depend on, except for the answers that processes got."""

    def changed(self) -> None:
        """Note that an event happened, or a step that may fail; other steps only read or wait."""

    def saved(self) -> Any:
        """Return a copy of all that steps and events may change."""

    def restore(self, saved: Any) -> None: ...
    def events(self) -> list[str]:
        """Return the events that can happen now; must not change anything: a repetition does not call it."""

    def fire(self, event: str) -> None: ...
    def check_step(self) -> str | None: ...
    def check_end(self) -> str | None: ...


@dataclass(frozen=True)
class Action:
    """One entry of a schedule."""

    actor: str
    fault: str = Fault.NONE

    def __str__(self) -> str:
        return f"{self.actor}{': ' + self.fault if self.fault else ''}"


@cache
def step_actions(process: str, faults: tuple[str, ...]) -> tuple[Action, ...]:
    return tuple(Action(process, fault) for fault in (Fault.NONE, *faults))


@cache
def event_action(event: str) -> Action:
    return Action(f"event {event}")


@dataclass(slots=True)
class Step:
    """One external call.

    :param run: depends on the world and on constants only: it is called in each execution that gets here,
        when the process may already be further on.
    :param is_look: answered at once, with no other action in between and without faults.
    """

    name: str
    run: Callable[[], Any]
    faults: tuple[str, ...] = ()
    late: Callable[[], None] | None = None
    is_look: bool = False


@dataclass(slots=True)
class End:
    """How a process ended."""

    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Answer:
    """The answer to a step: an outcome or an error."""

    outcome: Any = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        return repr(self.outcome) if self.error is None else repr(self.error)


@dataclass(slots=True)
class Point:
    """The position of a process's code after some answers: at a step, or at its end.

    An execution in which the process gets the same answers at the same times comes to the same point, without
    running the code again. Only a step from a known point to a new one needs a greenlet at the known one.

    :param answer: the answer at the point before, given at ``seconds`` of the clock.
    :param glet: a greenlet that is at this point.
    """

    reached: Step | End
    actions: tuple[Action, ...]
    before: Point | None
    answer: Answer
    seconds: float
    glet: greenlet.greenlet | None
    next: dict[tuple[str, float], Point] = field(default_factory=dict)


class Process:
    """One process in the current execution.

    :param history: number of the sequence of its answers and of the faults of its steps.
    """

    def __init__(self, name: str, body: Callable[[], Any], point: Point) -> None:
        self.name, self.body = name, body
        self.point = point
        self.history = 0
        self.dead = False

    @property
    def pending(self) -> Step | None:
        reached = self.point.reached
        return reached if isinstance(reached, Step) and not self.dead else None

    @property
    def done(self) -> bool:
        return self.pending is None

    @property
    def result(self) -> Any:
        reached = self.point.reached
        return reached.result if isinstance(reached, End) else None

    @property
    def error(self) -> BaseException | None:
        reached = self.point.reached
        return reached.error if isinstance(reached, End) else None


@dataclass(frozen=True, slots=True)
class Schedule:
    """An execution to make: repeats another one up to an action, deviates, then takes the default order.

    :param actions: actions of the other execution; the first ``length`` of them are repeated.
    :param deviations: number of actions that will deviate from the default order.
    """

    actions: tuple[Action, ...] = ()
    length: int = 0
    deviation: Action | None = None
    deviations: int = 0


@dataclass(frozen=True, slots=True)
class Saved:
    """An execution as it was after the first ``length`` of its actions."""

    actions: tuple[Action, ...]
    length: int
    world: Any
    processes: tuple[tuple[Point, int, bool], ...]
    late: dict[str, Callable[[], None]]
    narrative: tuple[str, ...]
    last: str | None
    previous: str


@dataclass
class SearchMemory:
    """What a search remembers of all executions.

    :param histories: numbers of the processes' histories, by previous history, fault and answer.
    :param sound: end states of the world that the oracle has accepted.
    """

    histories: dict[tuple[int, str, str], int] = field(default_factory=dict)
    sound: set[bytes] = field(default_factory=set)


class Run:
    """The executions of a scenario, one at a time."""

    def __init__(self, scenario: Callable[[Run], Collaborators], memory: SearchMemory) -> None:
        self.memory = memory
        self.processes: dict[str, Process] = {}
        self.late: dict[str, Callable[[], None]] = {}
        self.narrative: list[str] = []
        self.violation: str | None = None
        self.taken: list[Action] = []
        self._last: str | None = None
        """The process that made the last step, unless it ended with it."""
        self._previous = ""
        self._hub = greenlet.getcurrent()
        self._standing: set[greenlet.greenlet] = set()
        self._ends = False
        self.world: Collaborators
        self.world = scenario(self)
        self._begin = self._deviated = self._save(())

    # -- used by scenarios and ports --

    def spawn(self, name: str, body: Callable[[], Any]) -> None:
        glet = greenlet.greenlet(_to_its_end, parent=self._hub)
        point = self._arrived(name, glet, glet.switch(body), None, Answer())
        self.processes[name] = Process(name, body, point)
        self._look(self.processes[name])

    def step(
        self,
        name: str,
        run: Callable[[], Any],
        faults: tuple[str, ...] = (),
        late: Callable[[], None] | None = None,
    ) -> Any:
        """Make one step of the calling process; called from inside its greenlet."""
        return self._await(Step(name, run, faults, late))

    def look(self, run: Callable[[], Any]) -> Any:
        """Get an answer at once; called from inside the greenlet of a process."""
        return self._await(Step("", run, is_look=True))

    def _await(self, step: Step) -> Any:
        if self._ends:
            # Exception handlers of a dying process may try to act; the dead must not.
            raise Died
        return self._hub.switch(step)

    # -- points --

    def _arrived(
        self, name: str, glet: greenlet.greenlet, reached: Step | End, before: Point | None, answer: Answer
    ) -> Point:
        actions: tuple[Action, ...] = ()
        if isinstance(reached, Step):
            self._standing.add(glet)
            actions = step_actions(name, reached.faults)
        return Point(reached, actions, before, answer, self.world.clock.seconds, glet)

    def _hear(self, process: Process, answer: Answer, fault: str = Fault.NONE) -> None:
        """Give a process its answer, so that it runs to its next step."""
        text = repr(answer)
        point, heard = process.point, (text, self.world.clock.seconds)
        numbers = self.memory.histories
        process.history = numbers.setdefault((process.history, fault, text), len(numbers) + 1)
        if heard not in point.next:
            glet = self._greenlet_at(process, point)
            self._standing.discard(glet)
            point.glet = None
            reached = _resume(glet, answer)
            point.next[heard] = self._arrived(process.name, glet, reached, point, answer)
        process.point = point.next[heard]

    def _look(self, process: Process) -> None:
        """Answer the looks of a process, which are no steps."""
        while isinstance(step := process.point.reached, Step) and step.is_look:
            self._hear(process, _answer_of(step))

    def _greenlet_at(self, process: Process, point: Point) -> greenlet.greenlet:
        """Return a greenlet that is at a point; if there is none, run the code again up to there."""
        way = [point]
        while way[-1].glet is None and way[-1].before is not None:
            way.append(way[-1].before)
        now = self.world.clock.seconds
        start = way.pop()
        if start.glet is None:
            self.world.clock.seconds = start.seconds
            glet = greenlet.greenlet(_to_its_end, parent=self._hub)
            _check_same(glet.switch(process.body), start)
        else:
            glet, start.glet = start.glet, None
        for later in reversed(way):
            self.world.clock.seconds = later.seconds
            _check_same(_resume(glet, later.answer), later)
        self.world.clock.seconds = now
        return glet

    # -- the scheduler --

    def actions(self) -> list[Action]:
        """Return what can happen next."""
        actions: list[Action] = []
        for process in self.processes.values():
            if not process.dead:
                actions.extend(process.point.actions)
        actions.extend(event_action(event) for event in [*self.world.events(), *sorted(self.late)])
        return actions

    def default(self, actions: list[Action]) -> Action:
        """Return the action without deviation: the same process goes on, else the next one, then events."""
        last = self.processes.get(self._last or "")
        if last is not None and last.pending is not None and last.pending.name != "sleep":
            return last.point.actions[0]
        plain = [a for a in actions if not a.fault]
        sleeping = {
            p.name for p in self.processes.values() if p.pending is not None and p.pending.name == "sleep"
        }
        awake = [a for a in plain if a.actor not in sleeping]
        if self._last in sleeping:
            # While a process waits, the coordinator keeps writing markers.
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
        """Perform the schedule, from where the previous one deviated if both vary the same execution."""
        saved = self._deviated
        if saved.actions is not schedule.actions or saved.length > schedule.length:
            saved = self._begin
        self._restore(saved)
        for action in schedule.actions[saved.length : schedule.length]:
            self.perform(action)
        self._deviated = self._save(schedule.actions)
        if schedule.deviation is not None:
            self.perform(schedule.deviation)

    def _save(self, actions: tuple[Action, ...]) -> Saved:
        return Saved(
            actions,
            len(self.taken),
            self.world.saved(),
            tuple((p.point, p.history, p.dead) for p in self.processes.values()),
            dict(self.late),
            tuple(self.narrative),
            self._last,
            self._previous,
        )

    def _restore(self, saved: Saved) -> None:
        self.world.restore(saved.world)
        for process, (point, history, dead) in zip(self.processes.values(), saved.processes, strict=True):
            process.point, process.history, process.dead = point, history, dead
        self.late, self.narrative = dict(saved.late), list(saved.narrative)
        self.taken = list(saved.actions[: saved.length])
        self._last, self._previous = saved.last, saved.previous
        self.violation = None

    def perform(self, action: Action) -> None:
        """Make the next step, or let an event happen."""
        self._previous = action.actor
        if action.actor.startswith("event "):
            self.world.changed()
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
        if fault == Fault.DIE:
            process.dead = True
            return
        if fault == Fault.DELAY:
            assert step.late is not None
            self.late[f"late {process.name} {step.name}"] = step.late
        if step.faults:
            self.world.changed()
        reply = _answer_of(step) if fault in (Fault.NONE, Fault.LOSE) else Answer()
        # A process that gets no answer does not know why.
        answer = Answer(error=TimeoutError(f"{step.name}: no answer")) if fault else reply
        self._hear(process, answer, fault)
        self._look(process)

    def key(self) -> bytes:
        histories = ",".join([f"{process.history}{process.dead}" for process in self.processes.values()])
        return _digest(
            "|".join(
                [
                    self.world.fingerprint(),
                    histories,
                    *sorted(self.late),
                    str(self._last),
                    self._previous[:13],
                ]
            )
        )

    def judge(self) -> str | None:
        """Ask the oracle at the end, unless it accepted this world before."""
        world = _digest(self.world.fingerprint())
        violation = None if world in self.memory.sound else self.world.check_end()
        if violation is None:
            self.memory.sound.add(world)
        return violation

    def close(self) -> None:
        """End processes that are still waiting, without letting them act on the world."""
        self._ends = True
        for glet in self._standing:
            glet.throw(Died)
        self._standing.clear()


def _to_its_end(body: Callable[[], Any]) -> End:
    try:
        return End(body())
    except Died:
        return End()
    except EXPECTED as error:
        if not isinstance(error.__cause__, (*EXPECTED, type(None))):
            raise  # a mistake in the code: what became of it is no answer of a run
        return End(error=error)


def _answer_of(step: Step) -> Answer:
    try:
        return Answer(step.run())
    except Exception as error:
        return Answer(error=error)


def _resume(glet: greenlet.greenlet, answer: Answer) -> Step | End:
    """Resume a greenlet with an answer; return the step or end that it reaches."""
    reached: Step | End
    if answer.error is None:
        reached = glet.switch(answer.outcome)
    else:
        reached = glet.throw(answer.error)
        answer.error.__traceback__ = None  # it references all frames of the process
    return reached


def _check_same(reached: Step | End, point: Point) -> None:
    """Check that a process did the same after the same answers."""
    expected = point.reached
    again, expected = (step.name if isinstance(step, Step) else step for step in (reached, point.reached))
    assert again == expected, f"{again}, not {expected}: it depends on more than answers"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class CounterExample:
    """A schedule that violates the guarantee."""

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
    afresh: bool = False,
) -> Report:
    """Search all schedules with at most ``deviations`` deviations, breadth first.

    :param faults: also let steps fail, lose their answer, or kill; False searches orders only.
    :param executions: maximum number of executions; the report says whether the search was exhaustive.
    :param seed: draw the schedules after those with one deviation at random: with another seed, a search that
        stops early has seen others.
    :param afresh: create the scenario for each execution, and run all code in each.
    """
    search = _Search(scenario, deviations, max_steps, faults=faults, afresh=afresh)
    try:
        return _searched(search, executions, None if seed is None else Random(seed))
    finally:
        search.close()


def _searched(search: _Search, executions: int, random: Random | None) -> Report:
    queue = deque([Schedule()])
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
    """Makes executions, and remembers the states that they reached."""

    def __init__(
        self,
        scenario: Callable[[Run], Collaborators],
        deviations: int,
        max_steps: int,
        *,
        faults: bool,
        afresh: bool,
    ) -> None:
        self.report = Report()
        self._scenario, self._deviations = scenario, deviations
        self._max_steps, self._faults, self._afresh = max_steps, faults, afresh
        self._memory = SearchMemory()
        self._run = Run(scenario, self._memory)
        self._visited: set[bytes] = set()

    def close(self) -> None:
        self._run.close()

    def execute(self, schedule: Schedule) -> list[Schedule]:
        """Execute until everything is done or a known state is reached; return the variations."""
        self.report.executions += 1
        if self._afresh:
            self._run.close()
            self._run = Run(self._scenario, self._memory)
        run = self._run
        run.repeat(schedule)
        branches: list[tuple[int, Action]] = []
        if self._goes_on_to_the_end(run, schedule, branches):
            self._judge(run, schedule)
        actions, deviations = tuple(run.taken), schedule.deviations + 1
        return [Schedule(actions, length, action, deviations) for length, action in branches]

    def _goes_on_to_the_end(self, run: Run, schedule: Schedule, branches: list[tuple[int, Action]]) -> bool:
        """Continue in the default order; note the alternatives in each new state.

        :returns: False if a known state is reached: what follows it was searched before.
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
                branches.extend(
                    (len(run.taken), action)
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
