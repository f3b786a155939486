"""What a Python worker keeps between tasks: PySpark's workers live on and serve the next task.

Two habits cost more than a small task does. PySpark collects garbage after every task, which with NumPy,
pandas and PyArrow loaded looks through the 100,000 objects that imports made: 45 ms of CPU. And Arrow's
allocator keeps what a task has freed.
"""

from __future__ import annotations

import gc

import pyarrow as pa

_frozen = False


def tidy() -> None:
    """Give back what Arrow keeps; take what is imported out of the collector's sight. At the end of a task.

    The latter once per process: objects that are frozen while they are part of a cycle are never freed.
    """
    global _frozen  # noqa: PLW0603 - it is the process that is tidied
    pa.default_memory_pool().release_unused()
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
