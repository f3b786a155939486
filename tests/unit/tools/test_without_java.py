"""Unit tests find no working Java, unless they are marked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_eos_testing.java import find_java, java_major_version


def test_a_unit_test_can_compute_options_and_starts_no_jvm():
    """The fake has a version, and its refusal tells what to do."""
    java = find_java()
    assert java.parent.parent == Path(os.environ["JAVA_HOME"])
    assert java_major_version(java) == 17

    done = subprocess.run([java, "-cp", "x", "Main"], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "@pytest.mark.jvm" in done.stderr


@pytest.mark.jvm
def test_a_test_that_is_marked_finds_the_real_java():
    """An empty class path is enough to see that it is a JVM."""
    done = subprocess.run(
        [find_java(), "-XshowSettings:vm", "-version"], capture_output=True, text=True, check=True
    )
    assert "VM settings" in done.stderr
