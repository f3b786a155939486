"""Spark Connect behaves like classic sessions: the same tests, in a separate process.

A Python process can hold one kind of session only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark_sessions import BOOTSTRAP, KIND

SUITES = [
    Path(__file__).with_name(name)
    for name in (
        "test_spark_data_plane.py",
        "test_spark_arrow.py",
        "test_failure_classes.py",
        "test_table_spark.py",
    )
]


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_data_plane_works_on_spark_connect(embedded_kafka):
    """All tests of the suites pass, except those about classic sessions."""
    every = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "chaos or not chaos"]
    done = subprocess.run(
        [*every, *map(str, SUITES)],
        env={**os.environ, KIND: "connect", BOOTSTRAP: embedded_kafka.bootstrap_servers},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=SUITES[0].parent.parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 150
