"""The demo's output while it runs: one line per event, with the seconds since its start."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_INDENT = " " * 11
_SIGN_OF_LIFE = 10.0


class Screen:
    """Prints events; during a long wait, prints progress every ten seconds."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def title(self, text: str) -> None:
        """Print the heading of a chapter."""
        _write(f"\n{text}\n{'-' * len(text)}")

    def event(self, text: str) -> None:
        """Print an event."""
        _write(f"[{time.monotonic() - self._begun:6.1f} s] {text}")

    def detail(self, text: str) -> None:
        """Print more about the last event, in one or more lines."""
        for line in text.splitlines():
            _write(f"{_INDENT}{line}")

    @contextmanager
    def waiting(self, subject: str) -> Iterator[None]:
        """Show that the demo is alive until the block ends."""
        self.event(f"{subject} ...")
        ended, since = threading.Event(), time.monotonic()

        def tell() -> None:
            while not ended.wait(_SIGN_OF_LIFE):
                self.detail(f"... {time.monotonic() - since:.0f} s")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
