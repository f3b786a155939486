"""A kill ends a run at any point: nothing is committed after the call has returned."""

from __future__ import annotations

import datetime as dt
import threading
import time
from dataclasses import replace

import pytest

from airflow_eos.broker.transactions import KafkaSession
from airflow_eos.engine import find_committed
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.engine.run import Run
from airflow_eos.exceptions import BrokersUnavailable, OutcomeUnknown, RunFailed
from airflow_eos.ledger.keys import id_kind
from airflow_eos.ledger.pins import Pins
from airflow_eos.model.ranges import Cursor, Interval
from airflow_eos.operations.queries import create_ledger
from airflow_eos.run.kill import KILL_SECONDS, Kill
from airflow_eos.run.states import State
from tests.support.local_runs import LocalPlane, Pipeline, Session
from tests.support.patience import wait_until

COUNT = 20
ON_THE_WAY = [
    State.FENCED,
    State.CHECKED,
    State.PLANNED,
    State.SEALED,
    State.OPEN,
    State.WRITTEN,
    State.STAGED,
    State.PROVEN,
]
EMPTY = [state for state in ON_THE_WAY if state is not State.SEALED]


def in_a_thread(run):
    """Start a run; return its thread and a container for its record or error."""
    ended = []

    def body():
        try:
            ended.append(run.execute())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, ended


@pytest.fixture(autouse=True)
def local(monkeypatch):
    monkeypatch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", LocalPlane)


@pytest.fixture
def pipeline(embedded_kafka):
    return Pipeline(embedded_kafka)


@pytest.fixture
def full(pipeline):
    pipeline.publish([f"v{i}" for i in range(COUNT)])
    return pipeline


def make_run(spec, *, at=None, session=Session, on_state=None):
    """Return a run that kills itself on entering a state, like a signal handler in its thread."""

    def entered(state):
        if state is at:
            run.kill()
        if on_state is not None:
            on_state(state)

    run = Run(session if session is not Session else Session(), spec, lambda df: df, on_state=entered)
    return run


def ends_without_a_commit(pipeline, run, spec=None):
    with pytest.raises(RunFailed, match="killed"):
        run.execute()
    assert pipeline.output() == []
    assert find_committed(spec or pipeline.spec) is None


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_a_kill_at_any_state_ends_the_run(full, state):
    """The next try does the work."""
    ends_without_a_commit(full, make_run(full.spec, at=state))
    assert full.run(try_number=2).records_written == COUNT


@pytest.mark.parametrize("state", EMPTY)
def test_a_kill_ends_a_run_with_nothing_to_read(pipeline, state):
    """It has no session to cancel and no output, but a record and offsets."""
    ends_without_a_commit(pipeline, make_run(pipeline.spec, at=state))


def test_a_kill_before_it_begins_ends_the_run(full):
    """A signal may arrive before the first request."""
    create_ledger(full.spec.deployment)
    run = make_run(full.spec)
    run.kill()
    ends_without_a_commit(full, run)


def test_a_kill_while_the_session_is_made_ends_the_run(full):
    """Starting Spark takes seconds; a session that is created too late is not used."""
    sealed = []

    def session(_plan):
        run.kill()
        run.kill()
        return Session()

    class Sealing(LocalPlane):
        def seal(self, plan, _writer):
            sealed.append(plan)
            return super().seal(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", Sealing)
        run = make_run(full.spec, session=session)
        ends_without_a_commit(full, run)
    assert sealed == []


def test_a_kill_reaches_a_session_that_is_made_meanwhile(full, monkeypatch):
    """One thread creates it while another kills: its jobs are cancelled, or never start."""
    begun, go, used = threading.Event(), threading.Event(), []

    def session(_plan):
        begun.set()
        assert go.wait(60)
        return Session()

    class Using(LocalPlane):
        def seal(self, plan, writer=None):
            used.append(1)
            return super().seal(plan, writer)

    monkeypatch.setattr("airflow_eos.spark.data_plane.SparkDataPlane", Using)
    run = make_run(full.spec, session=session)
    thread, ended = in_a_thread(run)
    assert begun.wait(60)
    run.kill()
    go.set()
    thread.join(60)
    assert isinstance(ended[0], RunFailed)
    assert used == []
    assert full.output() == []


def test_a_kill_while_the_ledger_is_looked_at_ends_the_run(full, monkeypatch):
    """After the connections are open, before the first state."""
    original = ControlPlane.collaborators
    run = make_run(full.spec)

    def killed(control, data):
        collaborators = original(control, data)
        run.kill()
        return collaborators

    monkeypatch.setattr(ControlPlane, "collaborators", killed)
    ends_without_a_commit(full, run)


def test_a_kill_while_a_boundary_is_pinned_ends_the_run(full, monkeypatch):
    """The pin may be committed: it is not output."""
    now = dt.datetime.now(dt.timezone.utc)
    hour = dt.timedelta(hours=1)
    spec = replace(full.spec, ranges=Interval(now - 3 * hour, now - hour, dt.timedelta(0)))
    pin = Pins.pin

    def killed(self, transactional_id, *arguments, **more):
        if id_kind(transactional_id) == "boundary":
            run.kill()
        return pin(self, transactional_id, *arguments, **more)

    monkeypatch.setattr(Pins, "pin", killed)
    run = make_run(spec)
    ends_without_a_commit(full, run, spec)


def test_a_kill_between_two_rounds_takes_no_other_epoch(full):
    """The committed rounds stay; the next try continues after them."""
    spec = replace(full.spec, ranges=Cursor(max_records=8, until_caught_up=True))
    fenced = []
    run = make_run(
        spec, at=State.COMMITTED, on_state=lambda s: fenced.append(s) if s is State.FENCED else None
    )
    with pytest.raises(RunFailed, match="killed"):
        run.execute()
    assert len(fenced) == 1
    assert len(full.output()) == 8
    again = replace(spec, try_number=2)
    assert Run(Session(), again, lambda df: df).execute().records_read == COUNT
    assert len(full.output()) == COUNT


def test_a_kill_that_overtakes_a_commit_wins(full, monkeypatch):
    """The commit is in flight, and the abort arrives first: the coordinator decides, and the call waits."""
    on_its_way, go = threading.Event(), threading.Event()
    commit = KafkaSession.commit

    def held(self):
        # The ledger's own pin comes first.
        if not self.identity.transactional_id.endswith(full.spec.group_id):
            return commit(self)
        on_its_way.set()
        assert go.wait(60)
        return commit(self)

    monkeypatch.setattr(KafkaSession, "commit", held)
    run = make_run(full.spec)
    thread, ended = in_a_thread(run)
    assert on_its_way.wait(60)
    run.kill()
    go.set()
    thread.join(60)
    assert isinstance(ended[0], RunFailed | OutcomeUnknown)
    assert full.output() == []
    assert find_committed(full.spec) is None


def test_a_kill_that_comes_behind_a_commit_changes_nothing(full, monkeypatch):
    """The coordinator has committed, its answer is in flight: the run succeeds."""
    sent, go = threading.Event(), threading.Event()
    commit = KafkaSession.commit

    def held(self):
        commit(self)
        if self.identity.transactional_id.endswith(full.spec.group_id):
            sent.set()
            assert go.wait(60)

    monkeypatch.setattr(KafkaSession, "commit", held)
    run = make_run(full.spec)
    thread, ended = in_a_thread(run)
    assert sent.wait(60)
    run.kill()
    assert len(full.output()) == COUNT
    go.set()
    thread.join(60)
    assert ended[0].records_written == COUNT


@pytest.mark.parametrize("fails_at_once", [False, True])
def test_a_kill_waits_for_a_commit_it_cannot_ask_about_and_no_longer(full, monkeypatch, fails_at_once):
    """No coordinator answers the abort: the call waits for the commit's own answer, for its whole budget."""
    on_its_way, go, waits = threading.Event(), threading.Event(), []
    commit, await_commit = KafkaSession.commit, Kill.await_commit

    def held(self):
        if self.identity.transactional_id.endswith(full.spec.group_id):
            on_its_way.set()
            assert go.wait(60)
        return commit(self)

    def awaited(self, seconds):
        waits.append(seconds)
        await_commit(self, seconds)

    def unreachable(_self, _identity, *, timeout=60.0):
        if not fails_at_once:
            waits.append(timeout)
            time.sleep(timeout)
        raise BrokersUnavailable("nobody answers")

    monkeypatch.setattr(KafkaSession, "commit", held)
    monkeypatch.setattr(Kill, "await_commit", awaited)
    run = make_run(full.spec)
    thread, _ = in_a_thread(run)
    assert on_its_way.wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_eos.broker.transactions.KafkaTransactions.abort", unreachable)
        begun = time.monotonic()
        run.kill()
        assert time.monotonic() - begun > 3
        assert sum(waits) <= KILL_SECONDS
        threading.Timer(0.5, go.set).start()
        begun = time.monotonic()
        run.kill(50.0 if fails_at_once else KILL_SECONDS)
        if fails_at_once:
            assert time.monotonic() - begun < 40
            wait_until(lambda: len(full.output()) == COUNT)
    thread.join(60)
