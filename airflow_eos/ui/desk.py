"""Answers the pages' queries from brokers, each within a few seconds and independent of others.

A call that takes longer goes on in its thread, so that the first read of a large ledger completes, and the
user gets a message. Errors are shown without details of the connection, which are in the API server's log.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, LedgerReplaced
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.verification import verify_output
from airflow_eos.ui.history import RunHistory
from airflow_eos.ui.known_runs import KnownRuns
from airflow_eos.ui.trouble import TOO_MANY, Trouble, trouble_of

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""Time that a page waits for the brokers."""
VERIFY_SECONDS = 30.0
"""Time that a page waits for the verification of a run's output."""
VERIFY_OFFSETS = 1_000_000
"""Only ``airflow eos verify`` verifies runs whose output spans more, including others' offsets in between."""
_START_ANEW = (LedgerReplaced, AuthorizationFailed, ConfigurationError)
_FRESH_SECONDS = 1.0
_DAMAGED_KEPT = 1_000
QUESTIONS_WAITING = (3, 24)
"""Limits for one user and for all: each query waits in a thread of the API server, which has 40."""
CALLS_UNDER_WAY = (3, 32)
"""Limits of calls to brokers for one user and for all: they may take longer than their callers wait."""
_VERIFICATIONS = (1, 4)


class SharedCalls:
    """Runs each call in its own thread, once for all concurrent callers (single flight).

    No lock is held while a call runs. With a lock around calls, or a single thread, a silent broker of one
    pipeline would delay the pages of all others.

    :param of_one_user: maximum of concurrent calls for one user; a call counts for its first user.
    :param of_all: maximum of concurrent calls.
    """

    def __init__(self, of_one_user: int, of_all: int) -> None:
        self._of_one_user, self._of_all = of_one_user, of_all
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._running: Counter[str] = Counter()

    def result(self, name: Hashable, call: Callable[[], T], *, user: str, seconds: float) -> T:
        """Return the result of the call, or raise its error.

        :param name: calls of the same name share one result.
        :param seconds: time limit of the wait; the call itself goes on.
        :raises TimeoutError: there is no result in time.
        :raises Trouble: the call is not running yet, and too many others are, of this user or of all.
        """
        with self._lock:
            future = self._under_way.get(name)
            if future is None:
                if self._running[user] >= self._of_one_user:
                    raise Trouble(TOO_MANY, "Too many questions of yours wait", "Wait for their answers.")
                if self._running.total() >= self._of_all:
                    text = "The brokers have answered none of them yet."
                    raise Trouble(503, "Too many questions wait", text)
                run = partial(self._run, name, call, user)
                future = self._under_way[name] = in_daemon_thread("airflow-eos-page", run)
                self._running[user] += 1
        if not wait([future], max(seconds, 0.0)).done:
            raise TimeoutError
        return future.result()

    def _run(self, name: Hashable, call: Callable[[], T], user: str) -> T:
        try:
            return call()
        finally:
            with self._lock:
                del self._under_way[name]  # later callers start a new call
                self._running[user] -= 1
                self._running += Counter()  # forgets users without a call


class Desk:
    """One history of the ledger for all requests of a process.

    A query has its own time limit and connections; equal queries share one result. Only the ledger is read
    for all together, once a second.

    :ivar damaged: runs, by pipeline and run key, whose output differed from the receipts at the last check.
    """

    def __init__(
        self, deployment: Callable[[], Deployment], *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._deployment = deployment
        self._seconds = answer_seconds
        self._questions = SharedCalls(*QUESTIONS_WAITING)
        self._calls = SharedCalls(*CALLS_UNDER_WAY)
        self._verifications = SharedCalls(*_VERIFICATIONS)
        self._history: RunHistory | None = None
        self._read_at = 0.0
        self.damaged: tuple[tuple[str, str], ...] = ()

    def ask(self, question: Callable[[KnownRuns], T], user: str = "") -> T:
        """Answer from a state of the ledger that is at most a second old.

        :param user: the user's name; only a few queries of one user may wait at a time.
        :raises Trouble: there is no answer, or none in time.
        """
        end = time.monotonic() + self._seconds

        def ask_brokers(name: Hashable, call: Callable[[], Any], /, *, seconds: float | None = None) -> Any:
            left = end - time.monotonic()
            return self._calls.result(name, call, user=user, seconds=min(left, seconds or left))

        def answer() -> T:
            history = self._history
            if history is None or time.monotonic() - self._read_at > _FRESH_SECONDS:
                history = ask_brokers("ledger", self._refreshed)
            return question(history.as_of_now(ask_brokers, self.damaged))

        try:
            # In its own thread, so that the time limit holds for every query.
            return self._questions.result(object(), answer, user=user, seconds=self._seconds)
        except TimeoutError:
            raise self._silence() from None
        except Exception as error:
            raise trouble_of(error) from error

    def close(self) -> None:
        """Close the connections; the next query opens them again."""
        history, self._history = self._history, None
        if history is not None:
            history.close()

    def verify(self, record: RunRecord, user: str = "") -> list[dict[str, Any]]:
        """Read a run's output again; remembers differences in :attr:`damaged`.

        :param user: the user's name; one run of one user at a time.
        :raises Trouble: the user's last verification is still running, the run is too large, or it took too
            long.
        """
        offsets = sum(receipt.span for receipt in record.receipts if receipt.records)
        if offsets > VERIFY_OFFSETS:
            text = f"Its output spans {offsets:,} offsets. `airflow eos verify` has no such limit."
            raise Trouble(413, "Too large to be verified here", text)

        def verify() -> list[dict[str, Any]]:
            findings = verify_output(self._deployment().kafka, record, seconds=VERIFY_SECONDS)
            self._remember(record, damaged=any(finding.outcome == "mismatch" for finding in findings))
            return [finding.to_dict() for finding in findings]

        run = (record.pipeline, record.run_key)
        try:
            return self._verifications.result(run, verify, user=user, seconds=VERIFY_SECONDS)
        except TimeoutError:
            text = f"It takes more than {VERIFY_SECONDS:.0f} seconds. `airflow eos verify` has the time."
            raise Trouble(504, "Not verified", text) from None
        except Exception as error:
            raise trouble_of(error) from error

    def _silence(self) -> Trouble:
        """Return the error of brokers without an answer in time."""
        history = self._history
        left = history.reader.left if history is not None else 0
        if left:
            text = f"The ledger is read for the first time; {left:,} offsets are left. Look again soon."
            return Trouble(503, "Still reading", text)
        text = f"They gave no answer within {self._seconds:.0f} seconds. That says nothing about any run."
        return Trouble(504, "The brokers are silent", text)

    def _remember(self, record: RunRecord, *, damaged: bool) -> None:
        name = (record.pipeline, record.run_key)
        others = tuple(run for run in self.damaged if run != name)
        self.damaged = (*others, name)[-_DAMAGED_KEPT:] if damaged else others

    def _refreshed(self) -> RunHistory:
        """Return the refreshed history; one call at a time."""
        history = self._history
        if history is None:
            history = self._history = RunHistory(self._deployment())
        try:
            history.refresh()
        except Exception as error:
            # Discard the connection's settings, too: a user may have corrected them.
            is_outdated = isinstance(error, _START_ANEW) or not history.pipelines
            if is_outdated or history.deployment != self._deployment():
                self.close()
            raise
        self._read_at = time.monotonic()
        return history
