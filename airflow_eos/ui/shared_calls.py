"""Calls that wait for brokers without blocking each other, because a page's question has little time.

No lock is held while a call runs. With a lock around calls, or a single thread, a silent broker of a
pipeline would delay the pages of all others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.ui.trouble import TOO_MANY, Trouble

T = TypeVar("T")


class Places:
    """A bounded number of places, with a smaller bound per user.

    :param of_one_user: number of places per user.
    :param of_all: number of places.
    """

    def __init__(self, of_one_user: int, of_all: int) -> None:
        self._of_one_user, self._of_all = of_one_user, of_all
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, user: str) -> None:
        """Take a place.

        :raises Trouble: none is free, or this user has too many.
        """
        with self._lock:
            if self._taken[user] >= self._of_one_user:
                raise Trouble(TOO_MANY, "Too many questions of yours wait", "Wait for their answers.")
            if self._taken.total() >= self._of_all:
                raise Trouble(503, "Too many questions wait", "The brokers have answered none of them yet.")
            self._taken[user] += 1

    def free(self, user: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[user] -= 1
            self._taken += Counter()  # forgets users without a place


class SharedCalls:
    """Runs each call in its own thread, once for all concurrent callers (single flight).

    :param places: for running calls; a call has a place of its first user until it ends.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[Any]] = {}

    def result(self, name: Hashable, call: Callable[[], T], *, user: str, seconds: float) -> T:
        """Return the result of the call, or raise its error.

        :param name: calls of the same name share one result.
        :param seconds: time limit of the wait; the call itself goes on.
        :raises TimeoutError: there is no result in time.
        :raises Trouble: the call is not running, and there is no place for it.
        """
        with self._lock:
            future = self._under_way.get(name)
            if future is None:
                future = self._under_way[name] = self._begin(name, call, user)
        if not wait([future], max(seconds, 0.0)).done:
            raise TimeoutError
        return future.result()

    def _begin(self, name: Hashable, call: Callable[[], T], user: str) -> Future[T]:
        def run() -> T:
            try:
                return call()
            finally:
                with self._lock:
                    del self._under_way[name]  # later callers start a new call
                self._places.free(user)

        self._places.take(user)
        try:
            return in_daemon_thread("airflow-eos-page", run)
        except RuntimeError:  # the system has no more threads
            self._places.free(user)
            raise
