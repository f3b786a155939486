"""Where tasks of the test Dags wait, in their own process, until the test lets them go."""

from __future__ import annotations

import os
import time
from pathlib import Path


def hold(name: str, *, passing: int = 0) -> None:
    """Say that this process has come here, and wait while the file ``<name>.hold`` exists.

    :param passing: how many may pass a shut gate before the first one waits.
    """
    folder = Path(os.environ["EOS_TEST_FOLDER"])
    with (folder / f"{name}.reached").open("a+") as reached:
        reached.write(f"{os.getpid()}\n")
        reached.seek(0)
        come = len(reached.readlines())
    while come > passing and (folder / f"{name}.hold").exists():
        time.sleep(0.1)
