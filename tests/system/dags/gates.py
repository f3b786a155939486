"""Gates at which tasks of the test Dags wait, in their own process, until the test opens them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def hold(name: str, *, passing: int = 0) -> None:
    """Record that this process has reached the gate, and wait while the file ``<name>.hold`` exists.

    :param passing: number of processes that may pass a shut gate before one waits.
    """
    folder = Path(os.environ["EOS_TEST_FOLDER"])
    with (folder / f"{name}.reached").open("a+") as reached:
        reached.write(f"{os.getpid()}\n")
        reached.seek(0)
        come = len(reached.readlines())
    while come > passing and (folder / f"{name}.hold").exists():
        time.sleep(0.1)
