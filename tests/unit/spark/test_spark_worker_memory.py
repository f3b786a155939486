"""What a Python worker keeps between tasks; in a separate process, because the test changes it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FROZEN_ONCE = """
import gc, weakref
import pandas
from airflow_eos.spark.running_task import tidy

class Knot:
    def __init__(self):
        self.itself = self

before = len(gc.get_objects())
tidy()
assert len(gc.get_objects()) < before / 20, (before, len(gc.get_objects()))

knot = Knot()
seen = weakref.ref(knot)
tidy()
del knot
gc.collect()
assert seen() is None, "what came later must not be kept for ever"
"""


@pytest.mark.process
def test_what_imports_made_is_out_of_the_collectors_sight_and_nothing_else() -> None:
    """PySpark collects garbage after every task: it must not scan NumPy, pandas and PyArrow."""
    done = subprocess.run(
        [sys.executable, "-c", _FROZEN_ONCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
