"""CPU seconds and peak memory of a job's processes, read from /proc; Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_PERIOD = 0.05
_SLOW_PERIOD = 0.25


@dataclass
class Usage:
    """Resource usage of this process and all its descendants while a block ran.

    :param cpu: user and system seconds, the broker's included.
    :param peak_mb: largest resident set of one process per kind: ``driver``, ``worker`` (PySpark's Python
        processes), ``jvm`` (Spark), ``broker``, ``client``.
    :param peak_disk_mb: peak total size of the files in the watched folder.
    """

    cpu: float = 0.0
    peak_mb: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak_disk_mb: float = 0.0


class Watch:
    """Measures a block: ``with Watch() as usage: ...``; ``usage`` is complete when the block ends.

    :param folder: folder whose files are measured, too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._usage = Usage()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Usage:
        self._usage.cpu = -cpu_seconds()
        self._thread.start()
        return self._usage

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._usage.cpu += cpu_seconds()

    def _sample(self) -> None:
        while not self._stop.wait(_PERIOD):
            for pid in descendants(os.getpid()):
                kind, resident = _kind(pid), _resident_mb(pid)
                self._usage.peak_mb[kind] = max(self._usage.peak_mb[kind], resident)
            if self._folder is not None:
                self._usage.peak_disk_mb = max(self._usage.peak_disk_mb, _disk_mb(self._folder))


class PeakMemory:
    """Tracks the peak total memory of a process and all its descendants while the process lives.

    Pages that forked processes share count once (PSS), so the sum is what the machine needs.

    :param root: process id; the caller starts and ends the process.
    """

    def __init__(self, root: int) -> None:
        self.mb = 0.0
        self._root = root
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while sampled := tree_mb(self._root):
            self.mb = max(self.mb, sampled)
            time.sleep(_SLOW_PERIOD)


def tree_mb(root: int) -> float:
    """Return the memory of a process and all its descendants in MB; pages that they share count once.

    :param root: process id; of an ended one the memory is 0.
    """
    tree: list[int] = []
    shares: list[float] = []
    # A process that begins or ends between two readings changes the others' shares: read them again.
    while tree != (tree := list(descendants(root))):
        shares = [_proportional_mb(pid) for pid in tree]
    return sum(shares)


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU seconds so far of a process and its descendants, including ended ones.

    :param root: process id; None for this process.
    """
    total = 0
    for pid in descendants(os.getpid() if root is None else root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # utime, stime, and those of ended children that were reaped.
        total += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return total / _TICKS


def descendants(root: int) -> Iterator[int]:
    """Yield the ids of a process and all its descendants."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        with suppress(OSError):  # it may end while its folder is listed
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    waiting += map(int, task.read_text().split())


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    if b"kafka.Kafka" in command:
        return "broker"
    if b"org.apache.spark" in command:
        return "jvm"
    return "worker" if b"pyspark" in command else "client"


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _disk_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it may be gone by now
            total += path.stat().st_blocks * 512
    return total / 1e6


def _proportional_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


__all__ = ["PeakMemory", "Usage", "Watch", "cpu_seconds", "descendants", "tree_mb"]
