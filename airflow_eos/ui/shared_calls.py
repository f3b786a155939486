"""Calls that wait for brokers without blocking each other, because a page's question has little time.

No lock is held while a call runs. With a lock around calls, or a single thread, a silent broker of a
pipeline would delay the pages of all others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from airflow_eos.daemon_thread import in_daemon_thread
from airflow_eos.ui.trouble import TOO_MANY, Trouble

T = TypeVar("T")


class SharedCalls:
    """Runs each call in its own thread, once for all concurrent callers (single flight).

    :param of_one_user: number of calls that run at a time for one user; a call counts for its first user.
    :param of_all: number of calls that run at a time.
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
        :raises Trouble: the call is not running, and too many are, of this user or of all.
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
