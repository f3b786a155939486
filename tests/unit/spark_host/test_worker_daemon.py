"""The daemon that forks Python workers: its imports, and when it and its workers end."""

import importlib.util
import io
import struct
import subprocess
import sys

import pyspark
import pytest

from airflow_eos.spark_host.worker_daemon import PRELOADED, send_encodable

WORKER = """
import os, socket
from pyspark import daemon
from airflow_eos.spark_host.worker_daemon import end_quietly
os.environ |= {"SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}  # as Spark does
ours, of_the_jvm = socket.socketpair()
of_the_jvm.close()
raise SystemExit(WRAPPED(daemon.worker)(ours, True))
"""


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("-X", "dev", "-W", "ignore")], ids=["", "finalizers-report"])
@pytest.mark.parametrize("wrapped", ["end_quietly", "(lambda worker: worker)"])
def test_an_idle_worker_that_spark_ends_says_nothing(wrapped, options):
    """In a session that is idle for more than a minute; PySpark's own worker logs a stack trace.

    A file whose last bytes cannot be written reports it in its finalizer: always from Python 3.13 on, before
    only in development mode. PySpark 4.0, which ignores the failed flush, shows only that.
    """
    passed_over = pyspark.__version__.startswith("4.0.") and sys.version_info < (3, 13) and not options
    quiet = wrapped == "end_quietly" or passed_over
    script = WORKER.replace("WRAPPED", wrapped)
    done = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert (done.stderr == "") == quiet, done.stderr
    assert ("BrokenPipeError" in done.stderr) != quiet


def sent_of(send, text):
    """Return what Spark gets of an exception: its announcement, and the text, if any follows."""
    sent = io.BytesIO()
    try:
        raise ValueError(text)
    except ValueError as error:
        send(error, sent)
    data = sent.getvalue()
    if len(data) == 4:
        return struct.unpack(">i", data)[0], None
    code, length = struct.unpack(">ii", data[:8])
    assert len(data) == 8 + length
    return code, data[8:].decode()


def test_the_text_of_an_exception_always_follows_its_announcement(monkeypatch):
    """PySpark's own function announces it and then sends nothing, if the text holds half of an emoji."""
    from pyspark.serializers import SpecialLengths
    from pyspark.worker import handle_worker_exception

    errors = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")  # as Python's own stderr
    monkeypatch.setattr(sys, "stderr", errors)
    thrown = SpecialLengths.PYTHON_EXCEPTION_THROWN
    assert sent_of(handle_worker_exception, "half \ud83d") == (thrown, None)
    code, text = sent_of(send_encodable(handle_worker_exception), "half \ud83d")
    assert (code, text.splitlines()[-1]) == (thrown, "ValueError: half \\ud83d")
    for send in (handle_worker_exception, send_encodable(handle_worker_exception)):
        code, text = sent_of(send, "whole \U0001f600")
        assert (code, text.splitlines()[-1]) == (thrown, "ValueError: whole \U0001f600")


DAEMON = """
import os, subprocess, sys, time
from airflow_eos.spark_host.worker_daemon import end_when_idle

child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
end_when_idle(0.3, 0.05, lambda code: os._exit(7))
began = time.monotonic()
if os.fork() == 0:
    time.sleep(0.8)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
while time.monotonic() - began < 1.5:
    time.sleep(0.1)
print("had children", flush=True)
child.stdin.close()
child.wait()
time.sleep(60)
"""


@pytest.mark.process
def test_a_worker_daemon_ends_when_it_has_had_no_worker_for_a_while() -> None:
    """Not earlier, and no worker ends because of it: otherwise Spark would keep one for each past session."""
    done = subprocess.run([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (7, b"had children\n")


def test_what_the_worker_daemon_imports_is_there() -> None:
    """A renamed module would silently cost time."""
    assert [name for name in PRELOADED if importlib.util.find_spec(name) is None] == []
