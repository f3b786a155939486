"""Airflow's components as processes of one session, each of which may be killed alone.

This file, executed by path (standard library only), is the leader of the session: it starts the commands of
a JSON document ``{"name": [argument, ...]}``, writes the process id of each into ``<name>.pid`` and its
output into ``<name>.log`` of the working folder, and reaps who has ended. It starts none of them again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main(commands: dict[str, list[str]]) -> None:
    """Start them all and wait for ever: whoever owns the session ends it."""
    for name, command in commands.items():
        with Path(f"{name}.log").open("ab") as output:
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        Path(f"{name}.pid").write_text(str(started.pid))
    while True:
        os.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
