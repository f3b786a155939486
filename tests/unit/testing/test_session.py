from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_eos_testing.session import Session, session_members

pytestmark = pytest.mark.process

# A child in its own process group, like Airflow's task and Spark's Python daemon.
TREE = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(600)"])
open("ready", "w").close()
time.sleep(600)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def start(home: Path, *, keep: bool = False) -> Session:
    home.mkdir()
    return Session([sys.executable, "-c", TREE], env=os.environ, home=home, log_path=home / "log", keep=keep)


def test_end_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    """Children in other process groups end, too, and the folder is gone; a second end does nothing."""
    session = start(tmp_path / "home")
    wait_for(tmp_path / "home" / "ready")
    assert len(session_members(session.leader_pid)) == 2
    assert session.is_alive
    session.end()
    session.end()
    assert session_members(session.leader_pid) == []
    assert not session.is_alive
    assert not (tmp_path / "home").exists()


def test_folder_can_be_kept(tmp_path: Path) -> None:
    """With keep the processes end and the files stay."""
    session = start(tmp_path / "home", keep=True)
    wait_for(tmp_path / "home" / "ready")
    session.end()
    assert session_members(session.leader_pid) == []
    assert (tmp_path / "home" / "ready").exists()


def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL of the owner ends the session and removes the folder, without any help."""
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import os, sys, time; from pathlib import Path; from airflow_eos_testing.session import Session\n"
        f"home = Path({str(home)!r})\n"
        f"s = Session([sys.executable, '-c', {TREE!r}], env=os.environ, home=home, log_path=home / 'log')\n"
        "print(s.leader_pid, flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    leader = int(owner.stdout.readline())
    wait_for(home / "ready")
    assert len(session_members(leader)) == 2
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while home.exists() or session_members(leader):
        assert time.monotonic() < deadline, session_members(leader)
        time.sleep(0.05)


def test_command_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    """A missing executable is named, with the output."""
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(OSError, match="no-such-command could not be started"):
        Session(["no-such-command"], env=os.environ, home=home, log_path=tmp_path / "log")
