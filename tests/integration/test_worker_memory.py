"""A Python worker serves many runs, in a warm session or server: it keeps nothing of finished runs."""

from __future__ import annotations

import pytest

from airflow_eos import arrow_process
from airflow_eos_testing import read_topic
from tests.support.spark_sessions import run

RUNS, WARM, MB = 9, 5, 20
"""Incompressible MB of each run, in one worker or in two."""


def noise(batch):
    """Return megabytes; the key is the kB that this worker has allocated, without free memory of its heap."""
    import ctypes
    import os

    import pyarrow as pa

    class Heap(ctypes.Structure):
        """The fields of glibc's mallinfo2, for all arenas."""

        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
                *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
            )
        ]

    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    heap = mallinfo()
    held = b"%d" % ((heap.uordblks + heap.hblkhd + pa.total_allocated_bytes()) // 1000)
    values = [os.urandom(10_000) for _ in range(len(batch))]
    return pa.record_batch({"key": [held] * len(batch), "value": values})


def noise_of_rows(frame):
    """Do the same after a DataFrame."""
    return frame.select("key", "value").mapInArrow(
        lambda batches: map(noise, batches), "key binary, value binary"
    )


@pytest.mark.parametrize(
    "process", [arrow_process(noise), pytest.param(noise_of_rows, marks=pytest.mark.chaos)]
)
def test_what_was_sent_is_let_go(broker, spark, process):
    """After nine runs, workers have allocated no more than after five."""
    source = broker.numbered("src", 2, MB * 50)
    held = []
    for _ in range(RUNS):
        sink = broker.topic("out", 2)
        run(broker, spark, broker.spec(source, sink), process)
        records = read_topic(broker.bootstrap, sink)
        assert len(records) == MB * 100
        held.append(max(int(record.key) for record in records) / 1000)
    assert held[-1] - held[WARM - 1] < MB, held
