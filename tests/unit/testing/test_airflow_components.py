"""The supervisor of Airflow's components: one that has ended is restarted on request."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from airflow_eos_testing import airflow_components
from airflow_eos_testing.airflow_processes import parent_of, stopped
from airflow_eos_testing.session import Session, session_members
from tests.support.patience import eventually, wait_until

COMMANDS = {name: ["sh", "-c", f"echo {name}; exec sleep 600"] for name in ("one", "two")}


def test_a_component_is_started_again_and_only_that(tmp_path: Path) -> None:
    """Its process id and output stay in the same files; other components are not affected."""
    leader = [sys.executable, "-I", "-S", airflow_components.__file__, json.dumps(COMMANDS)]
    session = Session(leader, env=os.environ, home=tmp_path, log_path=tmp_path / "leader.log", keep=True)
    try:
        files = [tmp_path / f"{name}.{end}" for name in COMMANDS for end in ("log", "pid")]
        wait_until(lambda: all(map(text_of, files)))
        pids = {name: int(text_of(tmp_path / f"{name}.pid")) for name in COMMANDS}
        assert {parent_of(pid) for pid in pids.values()} == {session.leader_pid}
        os.kill(pids["one"], signal.SIGKILL)
        eventually(lambda: session_members(session.leader_pid), lambda seen: pids["one"] not in seen)
        (tmp_path / "one.again").touch()
        wait_until(lambda: not (tmp_path / "one.again").exists())
        again = int(text_of(tmp_path / "one.pid"))
        assert again != pids["one"]
        assert {again, pids["two"]} < set(session_members(session.leader_pid))
        eventually(lambda: text_of(tmp_path / "one.log"), lambda text: text == "one\none\n")
        assert text_of(tmp_path / "two.log") == "two\n"
    finally:
        session.end()


def test_processes_stand_still_for_a_block() -> None:
    """They continue after it, also if one of them is gone."""
    killed = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
    living = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
    try:
        with stopped([killed, living]):
            wait_until(lambda: state_of(living) == "T")
            os.kill(killed, signal.SIGKILL)
            os.waitpid(killed, 0)
        wait_until(lambda: state_of(living) == "S")
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
