"""Asks brokers for a page, and lets nobody wait: one connection, one question at a time, a few seconds.

A question that takes longer goes on in its thread, so that a first reading of a large ledger comes to an end;
who asked is told so. What goes wrong is told in words that hold nothing of a connection; the API server's log
has the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    ConfigurationError,
    EosError,
    LedgerMissing,
    LedgerReplaced,
)
from airflow_eos.operations.verification import verify_output
from airflow_eos.ui.history import RunHistory

if TYPE_CHECKING:
    from airflow_eos.ledger.records.run import RunRecord
    from airflow_eos.model.spec import Deployment

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""How long a page waits for the brokers."""
VERIFY_SECONDS = 30.0
"""How long it waits for a run's output to be read again."""
VERIFY_OFFSETS = 1_000_000
"""Runs whose output spans more are verified by ``airflow eos verify``: what lies between is read, too."""
_START_ANEW = (LedgerReplaced, AuthorizationFailed, ConfigurationError)
_FRESH_SECONDS = 1.0
_WAITING_AT_MOST = 8
_OF_ONE_USER_AT_MOST = 3
_DAMAGED_KEPT = 1_000
TOO_MANY = 429
"""Status of the answer to a user of whom too many questions wait."""


class Trouble(Exception):
    """A question that has no answer, in words for the page.

    :param status: of the HTTP answer.
    """

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text

    def to_dict(self) -> dict[str, str]:
        """Return what the answer says."""
        return {"detail": self.text, "title": self.title}


class Desk:
    """One history of the ledger for all requests of a process.

    :param deployment: reads the settings when they are needed first.
    """

    def __init__(
        self, deployment: Callable[[], Deployment], *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._deployment = deployment
        self._seconds = answer_seconds
        self._lock = threading.Lock()
        self._verifying = threading.Lock()
        self._places = _Places()
        self._history: RunHistory | None = None
        self._read_at = 0.0
        self._damaged: tuple[tuple[str, str], ...] = ()

    @property
    def damaged(self) -> Collection[tuple[str, str]]:
        """Runs, by pipeline and run key, whose output was not what they wrote when verified here last."""
        return self._damaged

    def ask(self, question: Callable[[RunHistory], T], user: str = "") -> T:
        """Answer from the ledger as it is now, give or take a second.

        :param user: who asks; only a few questions of one user wait at a time.
        :raises Trouble: there is no answer, or none in time.
        """
        self._places.take(user)

        def answer() -> T:
            try:
                with self._lock:
                    return question(self._fresh())
            finally:
                self._places.free(user)

        try:
            return _within(self._seconds, answer)
        except TimeoutError:
            history = self._history
            left = history.reader.left if history is not None else 0
            if left:
                text = f"The ledger is read for the first time; {left:,} offsets are left. Look again soon."
                raise Trouble(503, "Still reading", text) from None
            text = f"They gave no answer within {self._seconds:.0f} seconds. That says nothing about any run."
            raise Trouble(504, "The brokers are silent", text) from None

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        with self._lock:
            if self._history is not None:
                self._history.close()
                self._history = None

    def verify(self, record: RunRecord) -> list[dict[str, Any]]:
        """Read a run's output again; one run at a time. What is found wrong is remembered: :attr:`damaged`.

        :raises Trouble: another one is being verified, it is too large, or it took too long.
        """
        offsets = sum(one.span for one in record.receipts if one.records)
        if offsets > VERIFY_OFFSETS:
            text = f"Its output spans {offsets:,} offsets. `airflow eos verify` has no such limit."
            raise Trouble(413, "Too large to be verified here", text)
        if not self._verifying.acquire(blocking=False):
            raise Trouble(409, "Another run is being verified", "One at a time: try again in a moment.")

        def answer() -> list[dict[str, Any]]:
            try:
                findings = verify_output(self._deployment().kafka, record, seconds=VERIFY_SECONDS)
                self._remember(record, damaged=any(one.outcome == "mismatch" for one in findings))
                return [one.to_dict() for one in findings]
            finally:
                self._verifying.release()

        try:
            return _within(VERIFY_SECONDS, answer)
        except TimeoutError:
            text = f"It takes more than {VERIFY_SECONDS:.0f} seconds. `airflow eos verify` has the time."
            raise Trouble(504, "Not verified", text) from None

    def _remember(self, record: RunRecord, *, damaged: bool) -> None:
        its = (record.pipeline, record.run_key)
        others = tuple(one for one in self._damaged if one != its)
        self._damaged = (*others, its)[-_DAMAGED_KEPT:] if damaged else others

    def _fresh(self) -> RunHistory:
        if self._history is None:
            self._history = RunHistory(self._deployment())
        if time.monotonic() - self._read_at > _FRESH_SECONDS:
            try:
                self._history.refresh()
            except Exception as error:
                # With what was read goes the connection's settings: somebody may have set them right.
                if isinstance(error, _START_ANEW) or not self._history.pipelines:
                    self._history.close()
                    self._history = None
                raise
            self._read_at = time.monotonic()
        return self._history


class _Places:
    """Places of questions that wait for an answer: few of one user, so that others find one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, user: str) -> None:
        """Take a place.

        :raises Trouble: there is none, or this user has too many.
        """
        with self._lock:
            if self._taken[user] >= _OF_ONE_USER_AT_MOST:
                raise Trouble(TOO_MANY, "Too many questions of yours wait", "Wait for their answers.")
            if self._taken.total() >= _WAITING_AT_MOST:
                raise Trouble(503, "Too many questions wait", "The brokers have answered none of them yet.")
            self._taken[user] += 1

    def free(self, user: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[user] -= 1
            self._taken += Counter()  # forgets users without a place


def _within(seconds: float, answer: Callable[[], T]) -> T:
    """Run it in a thread, which is left to itself when time is up.

    :raises TimeoutError: it has not ended.
    :raises Trouble: it failed.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            found.append(answer())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            failed.append(error)

    thread = threading.Thread(target=body, name="airflow-eos-page", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed and isinstance(failed[0], TimeoutError):
        raise failed[0]
    if failed:
        raise _trouble(failed[0]) from failed[0]
    if not found:
        raise TimeoutError
    return found[0]


def _trouble(error: BaseException) -> BaseException:
    if isinstance(error, Trouble):
        return error
    log.warning("A page has no answer", exc_info=error)
    if isinstance(error, LedgerMissing):
        text = "Where there never was one the first run makes it, or `airflow eos init`."
        return Trouble(404, "There is no ledger", text)
    if isinstance(error, LedgerReplaced):
        text = "Its topic is gone, or is not the one that was used before. `airflow eos doctor` says more."
        return Trouble(502, "The ledger is lost or was replaced", text)
    if isinstance(error, AuthorizationFailed):
        text = "The page needs Read on the ledger and on sinks, Describe on sources and transactional ids."
        return Trouble(502, "The brokers refuse it", text)
    if isinstance(error, BrokersUnavailable):
        return Trouble(502, "The brokers cannot be reached", "That says nothing about any run.")
    if isinstance(error, ConfigurationError):
        text = "See [eos] ui_kafka_config_id, and what the API server's log says."
        return Trouble(500, "The page's connection cannot be used", text)
    kind = type(error).__name__ if isinstance(error, EosError) else "an unexpected error"
    return Trouble(502, "There is no answer", f"The API server's log has the reason ({kind}).")
