"""Calls that may hang, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(name: str, call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread that does not keep the process alive; return the future of its result.

    :raises RuntimeError: the system has no more threads.
    """
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            future.set_exception(error)

    threading.Thread(target=body, name=name, daemon=True).start()
    return future
