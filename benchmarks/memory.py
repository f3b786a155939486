"""Peak memory of the Python workers, sampled from outside while a job runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_PERIOD = 0.05


class WorkerMemory:
    """The largest resident set of any PySpark worker process while the block runs, in MB; Linux only."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_PERIOD):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark" not in (folder / "cmdline").read_bytes():
                        continue
                    status = (folder / "status").read_text("ascii", "replace")
                except OSError:
                    continue
                if "python" not in status.split("\n", 1)[0]:
                    continue
                resident = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM 0")
                self.peak_mb = max(self.peak_mb, int(resident.split()[1]) / 1024)
