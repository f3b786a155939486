"""Calls that may hang, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
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


@contextmanager
def called_after(seconds: float, call: Callable[..., object], *arguments: object) -> Iterator[None]:
    """Call once, in a daemon thread, if the block takes longer."""
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
