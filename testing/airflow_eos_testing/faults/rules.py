"""Rules of a proxy: which requests get which fault, and how often."""

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

    :param api: name of the API key, such as ``Produce``.
    :param broker: ``host:port`` it goes to.
    :param frame: the whole request without its length prefix: header and body.
    """

    api: str
    version: int
    correlation_id: int
    broker: str
    frame: bytes = field(repr=False)


class ProxyFault:
    """A fault for matching requests; the handle that the proxy's methods return.

    :param times: number of requests it applies to; None for every one until :meth:`cancel`.
    :param containing: only requests whose bytes contain this text, such as a transactional id or a topic.
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
        """Number of requests the fault was applied to."""
        return self._hits

    def wait(self, timeout: float = 60.0, hits: int = 1) -> None:
        """Wait until it was applied to this many requests.

        :raises EmbeddedKafkaError: too few requests came in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._hits >= hits, timeout):
                raise EmbeddedKafkaError(
                    f"Only {self._hits} of {hits} {self.api} requests came to the proxy in {timeout:.0f} s"
                )

    def release(self, *, drop: bool = False) -> None:
        """Forward held or delayed requests at once, now and in future.

        :param drop: cut their connections instead: held frames never arrive.
        """
        self._dropped = drop
        self._released.set()

    def cancel(self) -> None:
        """Apply to no further request, and release held ones."""
        with self._changed:
            self._left = 0
        self._released.set()

    # -- the proxy's side --

    def takes(self, request: Request) -> bool:
        """Return whether the fault applies to this request, and count it if so."""
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
        """Count a hit and notify waiters."""
        with self._changed:
            self._hits += 1
            self._changed.notify_all()

    def stall(self) -> bool:
        """Wait as long as the fault says; return False if the held frame must be dropped."""
        self._released.wait(self.seconds)
        return not self._dropped
