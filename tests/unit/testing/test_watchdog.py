"""The process that cleans up after a dead owner, with ``sleep`` in the place of a broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from airflow_eos_testing.watchdog import (
    Watchdog,
    clean_up,
    environment_mark,
    marked_processes,
    process_mark,
    processes_with,
)
from tests.support.patience import wait_until

pytestmark = pytest.mark.process

TOLD = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Starts a watchdog and two marked processes, one of them stopped, and waits to be killed.
OWNER = """
import os, pathlib, signal, subprocess, sys, time
from airflow_eos_testing.watchdog import Watchdog, process_mark
home = pathlib.Path(sys.argv[1])
watchdog = Watchdog(home)
home.mkdir()
(home / "data").write_text("x")
def child():
    command = [sys.executable, "-c", "import time; time.sleep(600)", process_mark(home)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
children = [child(), child()]
children[1].send_signal(signal.SIGSTOP)
forked = os.fork() if "fork" in sys.argv else -1
if forked == 0:
    os.setsid()
    time.sleep(600)
print(watchdog.pid, forked, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def start_owner(home, *arguments):
    """Yield the owner, and the process ids of its watchdog and its forked child."""
    command = [sys.executable, "-c", OWNER, str(home), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        try:
            watchdog, forked = map(int, owner.stdout.readline().split())
            # For a moment after its start, a process shows no arguments.
            wait_until(lambda: len(marked_processes(process_mark(home))) == 2)
            yield owner, watchdog, forked
        finally:
            owner.kill()


def test_a_killed_owner_leaves_no_process_and_no_file(tmp_path):
    """SIGKILL of the owner ends running and paused processes and removes the folder."""
    home = tmp_path / "cluster"
    with start_owner(home) as (owner, _, _):
        owner.kill()

    wait_until(lambda: not home.exists() and not marked_processes(process_mark(home)))


def test_a_forked_child_that_holds_the_pipe_does_not_delay_the_clean_up(tmp_path):
    """A child that inherited the pipe and outlives the owner keeps nothing alive."""
    home = tmp_path / "cluster"
    with start_owner(home, "fork") as (owner, _, forked):
        owner.kill()
        try:
            wait_until(lambda: not home.exists() and not marked_processes(process_mark(home)))
        finally:
            os.kill(forked, signal.SIGKILL)


def test_the_owners_word_cleans_up_at_once(tmp_path):
    """After close() nothing is left, and the watchdog itself is gone."""
    home = tmp_path / "cluster"
    watchdog = Watchdog(home)
    home.mkdir()
    with subprocess.Popen(["sh", "-c", "exec sleep 600", "sh"]) as bystander:
        with subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", process_mark(home)]
        ) as own:
            wait_until(lambda: marked_processes(process_mark(home)))
            watchdog.close()

            assert own.wait(10) == -signal.SIGKILL
        assert not home.exists()
        assert bystander.poll() is None
        bystander.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(watchdog.pid, 0)


def test_keep_leaves_the_folder(tmp_path):
    """With keep, processes end and files stay."""
    home = tmp_path / "cluster"
    watchdog = Watchdog(home, keep=True)
    home.mkdir()
    command = [sys.executable, "-c", "import time; time.sleep(600)", process_mark(home)]
    with subprocess.Popen(command) as own:
        try:
            wait_until(lambda: marked_processes(process_mark(home)))
            watchdog.close()

            assert own.wait(10) == -signal.SIGKILL
        finally:
            own.kill()
    assert home.is_dir()


@pytest.mark.parametrize("signum", TOLD)
def test_signals_to_the_watchdog_do_not_stop_its_watch(tmp_path, signum):
    """A Ctrl-C or a SIGTERM to the whole group does not leave the cluster unguarded."""
    home = tmp_path / "cluster"
    with start_owner(home) as (owner, watchdog, _):
        # The process status shows ignored signals; until then the watchdog is still starting. All of them are
        # checked: some may have been ignored before (``nohup``).
        wait_until(lambda: all(ignores(watchdog, sig) for sig in TOLD))
        os.kill(watchdog, signum)
        owner.kill()

    wait_until(lambda: not home.exists() and not marked_processes(process_mark(home)))


def ignores(pid, signum):
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        line = next(line for line in status if line.startswith("SigIgn:"))
    return bool(int(line.split()[1], 16) & (1 << (signum - 1)))


def test_what_a_marked_process_starts_is_ended_too(tmp_path):
    """A mark in the environment is inherited by every command."""
    home = tmp_path / "cluster"
    home.mkdir()
    env = {**os.environ, **environment_mark(home)}
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"]
    with subprocess.Popen(command, env=env, start_new_session=True):
        wait_until(lambda: len(processes_with(f"AIRFLOW_EOS_HOME={home}")) == 2)
        clean_up(home)
    assert not processes_with(f"AIRFLOW_EOS_HOME={home}")
    assert not home.exists()
