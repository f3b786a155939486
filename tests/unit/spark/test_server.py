"""The parts of a supervised Spark Connect server that need none: identity, folder, connections, policies."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.server import control
from airflow_eos.spark.server.folder import CONN_ID, Held, ServerFolder
from airflow_eos.spark.server.identity import ProcessIdentity, kill_session
from airflow_eos.spark.server.sockets import connections_to, is_free, listens, reserve_ipv6
from airflow_eos.spark.server.supervisor import Idleness, Restarts
from airflow_eos.spark.worker_daemon import PRELOADED, quiet_when_spark_is_gone

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def folder(tmp_path: Path) -> ServerFolder:
    found = ServerFolder(tmp_path / "server")
    found.prepare()
    return found


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_pid_that_was_given_again_is_left_alone() -> None:
    """The number is the same and the start is another one; the right one gets its signal."""
    with subprocess.Popen(SLEEP) as child:
        known = ProcessIdentity.of(child.pid)
        assert known is not None
        assert known.is_alive
        for other in (replace(known, started=known.started - 1), replace(known, boot="another")):
            assert not other.is_alive
            assert not other.send(signal.SIGKILL)
        time.sleep(0.05)
        assert child.poll() is None
        assert ProcessIdentity.from_dict(json.loads(json.dumps(known.to_dict()))) == known
        assert known.send(signal.SIGKILL)
        # Ended, and not waited for: nobody.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not known.is_alive
        assert not known.send(signal.SIGTERM)


@pytest.mark.parametrize("data", [None, {}, [], {"pid": "x", "started": 1, "boot": ""}])
def test_a_state_file_that_names_no_process_is_none(data: object) -> None:
    """Whoever wrote it."""
    assert ProcessIdentity.from_dict(data) is None


def test_what_is_left_of_a_session_is_killed() -> None:
    """A child that outlives the leader; nobody of another session."""
    script = f"import subprocess; print(subprocess.Popen({SLEEP!r}).pid, flush=True)"
    with (
        subprocess.Popen(SLEEP) as bystander,
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
        ) as led,
    ):
        assert led.stdout is not None
        left = ProcessIdentity.of(int(led.stdout.readline()))
        led.wait()
        assert left is not None
        kill_session(led.pid)
        deadline = time.monotonic() + 10
        while left.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left.is_alive
        assert bystander.poll() is None
        bystander.kill()


def test_all_files_are_private(folder: ServerFolder) -> None:
    """Whatever the umask, and whatever the folder was before."""
    folder.path.chmod(0o777)
    before = os.umask(0)
    try:
        folder.prepare()
        folder.write_access(1234)
        folder.write_state({"phase": "ready"})
        os.close(folder.open_log())
        with folder.held():
            pass
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o700
    found = sorted(folder.path.iterdir())
    assert len(found) == 4
    assert {mode(path) for path in found} == {0o600}


def test_the_token_stays_when_the_port_changes(folder: ServerFolder) -> None:
    """The connection in Airflow stays true; a file that somebody brought counts."""
    first = folder.write_access(1234)
    assert len(first.token) > 40
    assert folder.access() == first
    assert folder.write_access(4321) == replace(first, port=4321)
    assert first.token not in first.address
    given = {CONN_ID: {"conn_type": "spark_connect", "host": "localhost", "port": 7, "password": "t"}}
    folder.connection.write_text(json.dumps(given))
    assert folder.write_access(8).token == "t"
    for broken in ("", "[]", "{}", json.dumps({CONN_ID: {"port": "7"}})):
        folder.connection.write_text(broken)
        assert folder.access() is None


def test_one_supervisor_has_the_folder(folder: ServerFolder) -> None:
    """To look whether somebody has it takes nothing away."""
    assert not folder.is_held
    with folder.held():
        assert folder.is_held
        with pytest.raises(Held), folder.held():
            pass
        assert folder.is_held
    assert not folder.is_held


def test_a_long_log_is_kept_beside_a_new_one(folder: ServerFolder) -> None:
    """Who has it open goes on writing."""
    log = folder.open_log()
    os.write(log, b"x" * 100)
    folder.roll_log(limit=100)
    assert folder.log.stat().st_size == 100
    os.write(log, b"y")
    folder.roll_log(limit=100)
    os.write(log, b"new")
    os.close(log)
    assert folder.log.read_text() == folder.log_end() == "new"
    assert folder.log.with_suffix(".log.1").read_text() == "x" * 100 + "y"


def test_connections_are_counted_by_the_kernel() -> None:
    """Those of the port itself; who listens is told by process."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not listens(os.getpid(), port)
        server.listen()
        assert listens(os.getpid(), port)
        assert not listens(1 if os.getpid() != 1 else 2, port)
        assert not is_free(port)
        assert connections_to(port) == 0
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert connections_to(port) == 1
        assert connections_to(port) == 0
    assert is_free(port)


def test_nobody_else_answers_for_localhost() -> None:
    """The port of ::1 is kept, and takes no connection; where somebody has it, that is an error."""
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of ::1 is taken"):
            reserve_ipv6(port)
    held = reserve_ipv6(port)
    assert held is not None
    with held, socket.socket(socket.AF_INET6) as late:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("::1", port), timeout=5)
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            late.bind(("::1", port))


def test_idle_is_when_nobody_was_connected_for_long() -> None:
    """A connection begins the time anew; without a limit there is no end."""
    now = 100.0
    idle, endless = Idleness(60, lambda: now), Idleness(None, lambda: now)
    for at, connections, over in [(150, 0, False), (159, 2, False), (218, 0, False), (219, 0, True)]:
        now = at
        assert idle.is_over(connections) is over
        assert not endless.is_over(connections)


def test_a_server_is_started_again_a_few_times() -> None:
    """Later each time, at most five times in a row; a long life begins a new row."""
    policy = Restarts()
    assert [policy.delay(10) for _ in range(5)] == [1, 2, 4, 8, 16]
    assert policy.delay(600) == 1
    assert [policy.delay(10) for _ in range(5)] == [2, 4, 8, 16, None]


def test_a_supervisor_that_was_killed_is_told(folder: ServerFolder) -> None:
    """Nobody holds the lock, whatever the state file says."""
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    folder.write_state({"phase": "ready", "port": 5, "supervisor": mine.to_dict(), "server": mine.to_dict()})
    found = control.status(folder.path)
    assert (found["running"], found["phase"], found["pid"]) == (False, "died", None)
    assert not control.stop(folder.path)


def test_a_server_of_another_container_is_left_to_it(folder: ServerFolder) -> None:
    """Its lock is seen through a shared folder, its processes are not: the numbers mean others here."""
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    other = replace(mine, started=mine.started + 1).to_dict()
    folder.write_state(
        {"phase": "ready", "port": 5, "supervisor": other, "server": other, "host": "elsewhere"}
    )
    with folder.held():
        assert not control.status(folder.path)["running"]
        with pytest.raises(ConfigurationError, match="runs on elsewhere"):
            control.stop(folder.path)
        with pytest.raises(ConfigurationError, match="runs on elsewhere"):
            control.start(folder.path, control.Settings())


def test_a_port_that_is_taken_is_named(folder: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, or that of the last start: with another one the connection in Airflow would be wrong."""
    monkeypatch.setattr(control, "_PORT_PATIENCE", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for asked in (port, None):
            with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is taken; with another"):
                control.start(folder.path, control.Settings(port=asked))
            folder.write_access(port)


def test_the_server_gets_no_secrets_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the address of another server; the paths of modules are absolute."""
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    secrets = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "s3cret",
        "AIRFLOW_CONN_KAFKA_DEFAULT": "s3cret",
        "AIRFLOW_VAR_KEY": "s3cret",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "s3cret",
        "SPARK_REMOTE": "s3cret",
    }
    for name, value in {**secrets, "AIRFLOW_HOME": "/kept", "KEPT": "too"}.items():
        monkeypatch.setenv(name, value)
    found = control.server_environment("local[2]")
    assert "s3cret" not in found.values()
    assert (found["AIRFLOW_HOME"], found["KEPT"], found["SPARK_LOCAL_IP"]) == ("/kept", "too", "127.0.0.1")
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(Path("somewhere").absolute())
    assert "SPARK_LOCAL_IP" not in control.server_environment("spark://master:7077")


def test_without_spark_itself_there_is_no_server(
    folder: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its client is installed."""
    monkeypatch.setattr("pyspark.util.is_remote_only", lambda: True)
    with pytest.raises(ConfigurationError, match="only Spark's client"):
        control.start(folder.path, control.Settings())


DAEMON = """
import os, subprocess, sys, time
from airflow_eos.spark.worker_daemon import end_when_idle

end_when_idle(0.3, 0.05, lambda code: os._exit(7))
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1.5)"])
began = time.monotonic()
if os.fork() == 0:
    time.sleep(0.8)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
child.wait()
assert time.monotonic() - began >= 1.4
print("had children", flush=True)
time.sleep(60)
"""


def test_a_worker_daemon_ends_when_it_has_had_no_worker_for_a_while() -> None:
    """Not before, and no worker ends by it: Spark would keep one for each session there ever was."""
    done = subprocess.run([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (7, b"had children\n")


def test_a_worker_whose_spark_is_gone_says_nothing() -> None:
    """Its last flush would leave a traceback in the log of a task that succeeds; other errors stay."""

    def failing(error: Exception) -> int:
        raise error

    ended = quiet_when_spark_is_gone(failing)
    assert ended(BrokenPipeError()) == 1
    with pytest.raises(OSError, match="disk"):
        ended(OSError("disk"))
    assert quiet_when_spark_is_gone(lambda code: code)(0) == 0


def test_what_the_worker_daemon_imports_is_there() -> None:
    """A module that was renamed would cost time in silence."""
    assert [name for name in PRELOADED if importlib.util.find_spec(name) is None] == []
