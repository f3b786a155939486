"""The first lines of a JVM that starts here, and where they go."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = '''
import os, subprocess, sys
from airflow_eos.spark_host.jvm_stderr import sorted_first_lines

def tell(words):
    """In one write: an unbuffered print writes the end of its line apart."""
    if {tells}:
        os.write(2, words + b"\\n")

{before}
with sorted_first_lines():
    child = subprocess.Popen(["sh", "-c", {says!r}], stdin=subprocess.PIPE)
    tell(b"of the parent, meanwhile")
tell(b"of the parent, later")
child.communicate(b"go on\\n")
import threading
for thread in threading.enumerate():
    if thread.name == "jvm-stderr":
        thread.join(20)
        assert not thread.is_alive()
'''


def outputs(says: str, before: str = "", *, tells: bool = True) -> tuple[list[str], list[str]]:
    """Return both outputs of a process that starts a child; the child continues once that has started."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(says=says, before=before, tells=tells)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_only_what_every_jvm_says_goes_to_standard_output():
    """Everything else stays where it was, also what comes much later, and what has no newline."""
    out, err = outputs(
        "echo WARNING: Using incubator modules: jdk.incubator.vector >&2; echo wrong >&2; echo plain; "
        "read go; echo late >&2; printf unended >&2"
    )
    assert sorted(out) == ["WARNING: Using incubator modules: jdk.incubator.vector", "plain"]
    assert sorted(err) == ["late", "of the parent, later", "of the parent, meanwhile", "unended", "wrong"]
    assert err.index("wrong") < err.index("late") < err.index("unended")


def test_the_same_words_later_on_are_left_alone():
    """They are not a JVM's first ones."""
    out, err = outputs(
        "for n in 1 2 3 4 5 6 7 8 9 10; do echo $n >&2; done; "
        "echo WARNING: Using incubator modules >&2; read go"
    )
    assert out == []
    assert "WARNING: Using incubator modules" in err
    assert {str(n) for n in range(1, 11)} <= set(err)


def test_megabytes_pass():
    """A pipe buffers 64 kB, so it must be read."""
    _, err = outputs("read go; yes 123456789 | head -c 3000000 >&2")
    assert sum(len(line) + 1 for line in err if line == "123456789") == 3_000_000


def test_a_jvm_that_fails_before_it_tells_its_port_is_ended():
    """PySpark waits for its end or its port without limit: remaining threads keep such a JVM alive."""
    starts = r"""
import subprocess
from airflow_eos.spark_host.jvm_stderr import sorted_first_lines

says = "echo 'Exception in thread \"main\" InvalidPathException: tmp-??' >&2; "
says += "exec -a pyspark-shell sleep 60"
with sorted_first_lines():
    jvm = subprocess.Popen(["bash", "-c", says])
    print(jvm.wait(30))
"""
    done = subprocess.run(
        [sys.executable, "-c", starts], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["-9"]
    assert "tmp-??" in done.stderr


def test_without_a_standard_error_nothing_is_changed():
    """For example in a daemon that closed it."""
    out, err = outputs("echo plain", before="os.close(2)", tells=False)
    assert (out, err) == (["plain"], [])
