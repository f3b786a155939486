"""A send that stops half way: some target partitions are on the brokers, others are not.

Send tasks run in other processes; they synchronise through files in a folder of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.spark import send_task as send_module

if TYPE_CHECKING:
    from pathlib import Path


def half_send_task(folder: str) -> type[send_module.SendTask]:
    """Return a send task class whose tasks synchronise through ``folder``.

    The first task writes half of its partitions, at least one; before the rest, it and all other tasks wait
    for the file ``go``. The class is defined locally so that executors get it by value.
    """

    class HalfSend(send_module.SendTask):
        def _write(self, connections: Any, batches: Any, end: float) -> Any:
            import pathlib
            import time

            place = pathlib.Path(folder)
            targets = sorted(batches)
            receipts: list[Any] = []
            try:
                (place / "first").open("x").close()
            except FileExistsError:
                pass
            else:
                half, targets = targets[: max(1, len(targets) // 2)], targets[max(1, len(targets) // 2) :]
                receipts += send_module.SendTask._write(  # noqa: SLF001 - its own base class
                    self, connections, {target: batches[target] for target in half}, end
                )
                (place / "written").touch()
            if targets:
                (place / "waiting").touch()
                while not (place / "go").exists() and time.monotonic() < end:
                    time.sleep(0.02)
                receipts += send_module.SendTask._write(  # noqa: SLF001
                    self, connections, {target: batches[target] for target in targets}, end
                )
            return receipts

    return HalfSend


def is_half_written(folder: Path) -> bool:
    """Return whether some partitions are on the brokers and a task waits with others."""
    return (folder / "written").exists() and (folder / "waiting").exists()


def let_go(folder: Path) -> None:
    """Let the tasks write the rest."""
    (folder / "go").touch()


@contextmanager
def half_sending(folder: Path) -> Iterator[None]:
    """Make this process's data planes stop half way through a send in this block."""
    task = send_module.SendTask
    send_module.SendTask = half_send_task(str(folder))  # type: ignore[misc]
    try:
        yield
    finally:
        send_module.SendTask = task  # type: ignore[misc]
