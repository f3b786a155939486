"""Rules of a proxy: which requests meet which fault, how often, and who waits for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.exceptions import EmbeddedKafkaError

Action = Literal["cut", "hold request", "hold response", "lose response", "silence", "refuse"]

FOREVER = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the proxy sees it.

    :param api: name of the API key, as ``Produce``.
    :param broker: ``host:port`` it goes to.
    :param frame: the whole request behind its length: header and body.
    """

    api: str
    version: int
    correlation_id: int
    broker: str
    frame: bytes = field(repr=False)


class ProxyFault:
    """A fault that waits for its requests; the handle that the proxy's methods return.

    :param times: how many requests meet it; None for every one until :meth:`cancel`.
    :param containing: only requests whose bytes hold this text, such as a transactional id or a topic.
    """

    def __init__(
        self,
        action: Action,
        api: str,
        times: int | None,
        *,
        seconds: float = 0.0,
        error_code: int = 0,
        containing: str | None = None,
    ) -> None:
        if times is not None and times < 1:
            raise ConfigurationError(f"times={times}: give at least 1, or None for every {api} request")
        self.action = action
        self.api = api
        self.seconds = seconds
        self.error_code = error_code
        self._containing = None if containing is None else containing.encode()
        self._left = times
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._dropped = False
        self._hits = 0

    def __repr__(self) -> str:
        return f"ProxyFault({self.action}, {self.api}, hits={self.hits})"

    @property
    def hits(self) -> int:
        """How many requests have met the fault."""
        return self._hits

    def wait(self, timeout: float = 60.0, hits: int = 1) -> None:
        """Wait until so many requests have met it.

        :raises EmbeddedKafkaError: it did not happen in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout):
                raise EmbeddedKafkaError(
                    f"Only {self._hits} of {hits} {self.api} requests came to the proxy in {timeout:.0f} s"
                )

    def release(self, *, drop: bool = False) -> None:
        """Let held or delayed requests go on at once, now and later.

        :param drop: cut their connections instead: what is held never arrives.
        """
        self._dropped = drop
        self._released.set()

    def cancel(self) -> None:
        """Meet no further request, and release what is held."""
        with self._changed:
            self._left = 0
        self._released.set()

    # -- the proxy's side --

    def takes(self, request: Request) -> bool:
        """Whether this request meets the fault; counts it."""
        if request.api != self.api or (
            self._containing is not None and self._containing not in request.frame
        ):
            return False
        with self._changed:
            if self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def hit(self) -> None:
        """Tell those who wait that it has happened."""
        with self._changed:
            self._hits += 1
            self._changed.notify_all()

    def stall(self) -> bool:
        """Wait as long as the fault says; False: what was held is to be dropped."""
        self._released.wait(self.seconds)
        return not self._dropped
