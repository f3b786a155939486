"""A send that stops half way: some target partitions are on the brokers, others are not.

Send tasks run in other processes; they meet in a folder of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_eos.spark import send_task as send_module

if TYPE_CHECKING:
    from pathlib import Path


def half_send_task(folder: str) -> type[send_module.SendTask]:
    """Return a send task class whose tasks stop in ``folder``.

    The first task to come writes half of its partitions, at least one; everybody else, and it with the rest,
    waits for the file ``go``. Defined here so that it travels to executors as code.
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
    """Whether something is on the brokers and something waits."""
    return (folder / "written").exists() and (folder / "waiting").exists()


def let_go(folder: Path) -> None:
    """Let the tasks write the rest."""
    (folder / "go").touch()


@contextmanager
def half_sending(folder: Path) -> Iterator[None]:
    """Let this process's data planes send half in this block."""
    task = send_module.SendTask
    send_module.SendTask = half_send_task(str(folder))  # type: ignore[misc]
    try:
        yield
    finally:
        send_module.SendTask = task  # type: ignore[misc]
