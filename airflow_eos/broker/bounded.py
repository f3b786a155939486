"""Calls into librdkafka that end in time, whatever librdkafka does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from confluent_kafka import KafkaError

from airflow_eos.broker.librdkafka import checked, explained

T = TypeVar("T")

GRACE = 5.0
"""Seconds for librdkafka to notice by itself that its own time-out is over."""


def bounded(doing: str, call: Callable[[float], T], timeout: float, *, grace: float = GRACE) -> T:
    """Make a blocking call in a thread of its own, and give it up when it does not come back.

    Not every call of librdkafka keeps its time-out (its issue 5456), and a commit must. The thread that is
    given up stays until the process ends; what it may still send carries the identity of a transaction that
    is aborted.
    Signals reach the caller while it waits, as they would not inside of librdkafka.

    :param doing: for messages, see :func:`airflow_eos.broker.librdkafka.explained`.
    :param call: called with ``timeout``.
    :param timeout: seconds.
    :raises EosError: as :func:`~airflow_eos.broker.librdkafka.checked`; a call that is given up timed out.
    """
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(checked(doing, lambda: call(timeout)))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            future.set_exception(error)

    threading.Thread(target=body, name=f"librdkafka: {doing}", daemon=True).start()
    if not wait([future], timeout + grace).done:
        late = f"librdkafka did not come back within {timeout + grace:.0f} s"
        raise explained(KafkaError(KafkaError._TIMED_OUT, late), doing)  # noqa: SLF001
    return future.result()
