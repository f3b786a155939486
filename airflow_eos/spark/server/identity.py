"""Which process a number means: a pid is given again, with its start it is not. Linux only (``/proc``)."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that is or was.

    :param started: clock ticks from the machine's start to the process's.
    :param boot: the kernel's name of that start of the machine.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return who has the number now; None: nobody, or one that has ended and is not waited for yet."""
        try:
            # pid (comm) state ...; comm may hold spaces and parentheses. The start is field 22.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]), _BOOT.read_text().strip())

    @classmethod
    def from_dict(cls, data: Any) -> ProcessIdentity | None:
        """Read what :meth:`to_dict` wrote; None where it is something else."""
        try:
            return cls(int(data["pid"]), int(data["started"]), str(data["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        """Whether this very process runs."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process, never to a later one of the same number.

        :return: whether it was there.
        """
        try:
            # The descriptor means the process that has the number now, whatever becomes of the number.
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def kill_session(leader: int) -> None:
    """SIGKILL what is left of the session that this process led: Python workers whose JVM has died."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        found = ProcessIdentity.of(int(entry.name))
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if found is not None and int(fields[3]) == leader:
            found.send(signal.SIGKILL)
