"""The test's side of the gates at which tasks wait."""

from __future__ import annotations

import time
from pathlib import Path


class Gate:
    """A gate at which tasks of a test Dag wait while it is shut."""

    def __init__(self, folder: Path, name: str) -> None:
        self._hold = folder / f"{name}.hold"
        self._reached = folder / f"{name}.reached"

    def shut(self) -> None:
        self._reached.unlink(missing_ok=True)
        self._hold.touch()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)

    def wait(self, processes: int = 1, timeout: float = 240) -> list[int]:
        """Wait until this many processes have reached it since it was shut; return their ids, in order."""
        deadline = time.monotonic() + timeout
        while True:
            pids = [int(line) for line in self._reached.read_text().split()] if self._reached.exists() else []
            if len(pids) >= processes:
                return pids
            assert time.monotonic() < deadline, f"{len(pids)} of {processes} processes came to the gate"
            time.sleep(0.05)
