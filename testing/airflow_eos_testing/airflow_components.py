"""Airflow's components as processes of one session; each can be killed and restarted on its own.

This file, executed by path (standard library only), is the leader of the session: it starts the commands of
a JSON document ``{"name": [argument, ...]}``, writes the process id of each into ``<name>.pid`` and its
output into ``<name>.log`` of the working folder, and reaps ended processes. It restarts a component when
the file ``<name>.again`` appears, and removes the file when the new process id is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL = 0.1


def main(commands: dict[str, list[str]]) -> None:
    """Start all commands and serve restarts for ever: the session's owner ends it."""
    for name, command in commands.items():
        _start(name, command)
    while True:
        _reap()
        for name, command in commands.items():
            again = Path(f"{name}.again")
            if again.exists():
                _start(name, command)
                again.unlink()
        time.sleep(_POLL)


def _start(name: str, command: Sequence[str]) -> None:
    with Path(f"{name}.log").open("ab") as output:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    Path(f"{name}.pid").write_text(str(started.pid))


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
