"""The pages' desk: brokers that are silent about one pipeline delay no page of another."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.verification import Finding
from airflow_eos.ui import desk as desk_module
from airflow_eos.ui import transaction_rows
from airflow_eos.ui.broker_answers import SourceLogs
from airflow_eos.ui.desk import QUESTIONS_WAITING, Desk, SharedCalls
from airflow_eos.ui.transaction_rows import OpenNow
from airflow_eos.ui.trouble import Trouble
from airflow_eos.ui.viewer import Viewer
from tests.support.hand_reader import RUN, HandReader, history_by_hand
from tests.support.patience import wait_until

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)


class SilentAboutOne:
    """Brokers that answer for each topic except ``silent``, for which they answer once released."""

    def __init__(self):
        self.released = threading.Event()
        self.requests = []

    def logs(self, topics):
        self.requests.append(sorted(topics))
        if "silent" in topics:
            self.released.wait()
        return SourceLogs({TopicPartition(name, 0): LogBounds(0, 9) for name in topics}, {}, frozenset())

    def open_transactions(self):
        self.released.wait()
        return {}

    def close(self):
        pass


@pytest.fixture
def brokers():
    fake = SilentAboutOne()
    yield fake
    fake.released.set()


@pytest.fixture
def reader():
    hand_reader = HandReader()
    hand_reader.put_run(0, "silent", topic="silent")
    hand_reader.put_run(0, "lively", topic="lively")
    return hand_reader


@pytest.fixture
def desk(brokers, reader, monkeypatch):
    """Its pages wait for a minute; see :func:`refused`."""

    def history(deployment):
        run_history = history_by_hand(reader)
        run_history.brokers = brokers
        return run_history

    monkeypatch.setattr(desk_module, "RunHistory", history)
    monkeypatch.setattr(desk_module, "_FRESH_SECONDS", 0.0)
    return Desk(lambda: None, answer_seconds=60.0)


def runs_of(pipeline):
    return lambda history: history.coverage(history.pipelines[pipeline]).runs


def len_of_pipelines(history):
    return len(history.pipelines)


def refused(desk, question, user=""):
    """Return the error of a page that waits for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk, "_seconds", 0.3)
        with pytest.raises(Trouble) as trouble:
            desk.ask(question, user)
    return trouble.value


def test_a_changed_connection_is_read_when_its_brokers_do_not_answer(brokers, reader, monkeypatch):
    """The page would ask at the old addresses until the API server restarts."""
    old, new = (Deployment({"bootstrap.servers": f"{name}:1"}) for name in ("old", "new"))
    opened, connection = [], [old]

    def history(deployment):
        read = history_by_hand(reader)
        read.brokers, read.deployment = brokers, deployment
        opened.append(deployment)
        return read

    def away():
        raise BrokersUnavailable("none answers")

    monkeypatch.setattr(desk_module, "RunHistory", history)
    monkeypatch.setattr(desk_module, "_FRESH_SECONDS", 0.0)
    desk = Desk(lambda: connection[0], answer_seconds=60.0)
    desk.ask(len_of_pipelines)
    monkeypatch.setattr(reader, "look", away)
    refused(desk, len_of_pipelines)
    connection[0] = new
    refused(desk, len_of_pipelines)
    assert opened == [old]
    refused(desk, len_of_pipelines)
    assert opened == [old, new]


def test_brokers_silent_about_one_pipeline_delay_no_page_of_another(desk, brokers, reader):
    """During its request, and after it was given up; new commits are seen."""
    with ThreadPoolExecutor() as threads:
        silent = threads.submit(desk.ask, runs_of("silent"), "a")
        wait_until(lambda: ["silent"] in brokers.requests)
        assert desk.ask(runs_of("lively"), "b") == 1
        reader.put_run(1, "lively", topic="lively")
        assert desk.ask(runs_of("lively"), "b") == 2
        trouble = refused(desk, runs_of("silent"), "a")
        assert (trouble.status, "silent" in str(trouble)) == (504, True)
        assert desk.ask(runs_of("lively"), "a") == 2
        assert not silent.done()
        brokers.released.set()
        assert silent.result() == 1


def test_a_page_does_without_open_transactions_where_a_broker_is_silent(desk, monkeypatch):
    """All brokers are asked for them, also those without a pipeline on the page."""
    monkeypatch.setattr(transaction_rows, "SECONDS_BESIDE", 0.05)
    viewer = Viewer([RUN.dag_id])

    def question(history):
        return runs_of("lively")(history), OpenNow.beside(history, viewer, "test")

    runs, open_now = desk.ask(question)
    assert (runs, open_now.rows(viewer, (), "test", NOW)) == (1, [])
    assert "did not answer" in open_now.unseen
    assert "silent" in str(refused(desk, lambda history: OpenNow.of(history, viewer, "test")))


def test_who_asks_the_same_waits_for_one_call(desk, brokers):
    """Many users ask again and again: brokers are asked once, and no request takes two places."""
    for user in ("a", "a", "a", "a", "b", "c", "d"):
        assert refused(desk, runs_of("silent"), user).status == 504
        wait_until(lambda: brokers.requests)
    assert brokers.requests == [["silent"]]
    brokers.released.set()
    assert desk.ask(runs_of("silent"), "a") == 1


def test_one_users_questions_leave_places_to_others(desk, brokers):
    """However many of one user's requests wait; no more than the API server has spare threads for."""
    of_one_user, of_all = QUESTIONS_WAITING
    with ThreadPoolExecutor(of_all + 1) as threads:
        waiting = [threads.submit(desk.ask, runs_of("silent"), "a") for _ in range(of_one_user)]
        wait_until(lambda: desk._questions._running["a"] == of_one_user)
        assert refused(desk, runs_of("lively"), "a").status == 429
        assert desk.ask(runs_of("lively"), "b") == 1
        brokers.released.set()
        assert [question.result() for question in waiting] == [1] * of_one_user


def test_a_question_that_never_ends_by_itself_is_given_up(desk, brokers):
    """Whatever it waits for; it occupies a place of its user."""
    assert "silent" in str(refused(desk, lambda history: brokers.released.wait(), "a"))
    assert desk._questions._running["a"] == 1
    assert desk.ask(runs_of("lively"), "b") == 1


def test_calls_that_never_end_take_the_places_of_their_user_alone():
    """Their results are no longer awaited, but each occupies a thread and a connection."""
    released = threading.Event()
    calls = SharedCalls(3, 5)

    def result(name, user):
        return calls.result(name, released.wait, user=user, seconds=0.01)

    for name, user in ((1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")):
        with pytest.raises(TimeoutError):
            result(name, user)
    for name, user, status in ((6, "a", 429), (6, "c", 503)):
        with pytest.raises(Trouble) as refused:
            result(name, user)
        assert refused.value.status == status
    with pytest.raises(TimeoutError):
        result(1, "c")  # is running
    released.set()
    wait_until(lambda: not calls._under_way)
    assert calls.result(6, lambda: "answer", user="a", seconds=5) == "answer"


def test_a_call_whose_thread_cannot_start_leaves_nothing_behind(monkeypatch):
    """Neither an occupied place, nor a call that others wait for."""
    calls = SharedCalls(1, 1)

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            calls.result("name", lambda: 1, user="a", seconds=5)
    assert calls.result("name", lambda: 1, user="a", seconds=5) == 1


def test_whoever_asks_after_an_answer_asks_anew():
    """Neither errors nor results are cached."""
    calls = SharedCalls(1, 1)
    answers = iter((ValueError("first"), "second", "third"))

    def call():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="first"):
        calls.result("name", call, user="a", seconds=5)
    assert [calls.result("name", call, user="a", seconds=5) for _ in range(2)] == ["second", "third"]


def test_a_verification_that_hangs_keeps_no_other_user_waiting(desk, monkeypatch):
    """A run is verified only once at a time."""
    released, verified = threading.Event(), []

    def verify_output(kafka, record, *, seconds):
        verified.append(record.run_key)
        if record is RUN:
            released.wait()
        return [Finding(record.run_key, "t", 0, "mismatch", 1, 0)]

    class Settings:
        kafka = None

    monkeypatch.setattr(desk_module, "verify_output", verify_output)
    desk._deployment = Settings
    with monkeypatch.context() as patched:
        patched.setattr(desk_module, "VERIFY_SECONDS", 0.3)
        for user in ("a", "b"):
            with pytest.raises(Trouble) as trouble:
                desk.verify(RUN, user)
            assert trouble.value.status == 504
    another = replace(RUN, run_key="another")
    assert desk.verify(another, "b")[0]["outcome"] == "mismatch"
    assert list(desk.damaged) == [(another.pipeline, "another")]
    with pytest.raises(Trouble) as trouble:
        desk.verify(another, "a")
    assert trouble.value.status == 429
    released.set()
    assert verified == [RUN.run_key, "another"]
