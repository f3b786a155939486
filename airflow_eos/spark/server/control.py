"""Start a server, look at it, stop it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark import class_data, jvm
from airflow_eos.spark.encryption import local_defaults
from airflow_eos.spark.server.folder import Access, ServerFolder
from airflow_eos.spark.server.identity import ProcessIdentity
from airflow_eos.spark.server.sockets import HOST, connections_to, free_port, is_free, listens
from airflow_eos.spark.server.supervisor import ALREADY_HELD, END_TIMEOUT, START_TIMEOUT, TOKEN_VARIABLE

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SUPERVISOR = "airflow_eos.spark.server.supervisor"
_ROOT = Path(__file__).resolve().parents[3]
_NOT_FOR_SPARK = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "SPARK_REMOTE", TOKEN_VARIABLE)
_POLL = 0.1
_CHECK_TIMEOUT = 120.0
_PORT_PATIENCE = 3.0
_FIRST_STATE = 5.0
"""Seconds that a supervisor may take to say who it is."""
_STOP_TIMEOUT = END_TIMEOUT + 20.0

# The address comes through a pipe: a command line is public. First without the token, then as a task does.
_CHECK = """
import sys
import uuid

import grpc
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

url = sys.stdin.read()
asked = base_pb2.AnalyzePlanRequest(
    session_id=str(uuid.uuid4()), spark_version=base_pb2.AnalyzePlanRequest.SparkVersion()
)
with grpc.insecure_channel(url.partition("://")[2].partition("/")[0]) as channel:
    try:
        base_pb2_grpc.SparkConnectServiceStub(channel).AnalyzePlan(asked, timeout=60)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise
    else:
        sys.exit("it answers without the token: this Spark is too old for one")

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(url).getOrCreate()
assert spark.range(100).mapInArrow(lambda batches: batches, "id long").count() == 100
spark.stop()
"""


@dataclass(frozen=True)
class Settings:
    """What a start is given.

    :param port: on loopback; None: that of the last start, at first a free one.
    :param memory: of the JVM, in Spark's notation; Python workers come on top.
    :param master: where it computes.
    :param idle_minutes: stop when nobody was connected for so long; None: never.
    :param class_data_folder: where class-data archives are, see :mod:`airflow_eos.spark.jvm`.
    """

    port: int | None = None
    memory: str = "1g"
    master: str = "local[*]"
    idle_minutes: float | None = None
    class_data_folder: Path | None = None


def start(path: Path, settings: Settings) -> tuple[dict[str, Any], bool]:
    """Start a server unless one runs, and wait until a session has computed something on it.

    :return: what :func:`status` returns, and whether it was started now.
    :raises ConfigurationError: it cannot be started here, or did not answer: with the end of its log.
    """
    _check_machine()
    folder = ServerFolder(path)
    folder.prepare()
    supervisor = None
    if not folder.is_held:
        supervisor = _spawn(folder, settings)
    started = _wait(folder, supervisor)
    if started:
        if supervisor is not None:
            # It outlives this process: that is what Popen would warn of.
            supervisor.returncode = 0
        try:
            _check(folder)
        except ConfigurationError:
            stop(path)
            raise
    return status(path), started


def status(path: Path) -> dict[str, Any]:
    """Return what there is, by names; ``running`` is whether a server takes connections."""
    folder = ServerFolder(path)
    state, held = folder.state(), folder.is_held
    server = ProcessIdentity.from_dict(state.get("server"))
    supervisor = ProcessIdentity.from_dict(state.get("supervisor"))
    port = int(state.get("port", 0))
    phase = str(state.get("phase", "stopped"))
    if not held and phase not in ("stopped", "failed"):
        phase = "died"
    is_here = held and state.get("host") == socket.gethostname()
    running = bool(is_here and phase == "ready" and server and server.is_alive and listens(server.pid, port))
    return {
        "running": running,
        "phase": phase,
        "reason": state.get("reason", ""),
        "address": Access(port, "").address if port else None,
        "connections": connections_to(port) if running else 0,
        "pid": server.pid if held and server else None,
        "supervisor_pid": supervisor.pid if held and supervisor else None,
        "host": state.get("host"),
        "since": state.get("since"),
        "restarts": state.get("restarts", 0),
        **{name: state.get(name) for name in ("master", "memory", "idle_minutes")},
        "folder": str(folder.path),
        "log": str(folder.log),
    }


def stop(path: Path) -> bool:
    """End a server and wait until it has ended; tell whether there was one.

    :raises ConfigurationError: it runs on another host or in another container, or did not end.
    """
    folder = ServerFolder(path)
    if not folder.is_held:
        return False
    deadline = time.monotonic() + _FIRST_STATE
    while not (state := folder.state()) and time.monotonic() < deadline:
        time.sleep(_POLL)
    supervisor = ProcessIdentity.from_dict(state.get("supervisor"))
    if supervisor is None or not supervisor.send(signal.SIGTERM):
        if not folder.is_held:
            return True
        raise ConfigurationError(f"the Spark Connect server of {folder.path} runs on {state.get('host')}")
    if _released(folder, _STOP_TIMEOUT):
        return True
    # Its JVM dies with it.
    supervisor.send(signal.SIGKILL)
    if not _released(folder, END_TIMEOUT):
        raise ConfigurationError(f"the supervisor, process {supervisor.pid}, did not end")
    return True


def import_command(path: Path) -> str:
    """Return the command that makes the Airflow connection; the token is in a file, not in the command."""
    return f"airflow connections import --overwrite {shlex.quote(str(ServerFolder(path).connection))}"


def _released(folder: ServerFolder, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while folder.is_held:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _check_machine() -> None:
    from pyspark.util import is_remote_only

    if sys.platform != "linux":
        raise ConfigurationError("a supervised Spark Connect server needs Linux")
    if is_remote_only():
        raise ConfigurationError("only Spark's client is installed: no JVM of Spark starts here")


def _spawn(folder: ServerFolder, settings: Settings) -> subprocess.Popen[bytes]:
    known = folder.access()
    port = settings.port or (known.port if known else free_port())
    deadline = time.monotonic() + _PORT_PATIENCE
    while not is_free(port):
        # A server that was killed just now.
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"port {port} of {HOST} is taken; with another --port, the connection must be made again"
            )
        time.sleep(_POLL)
    folder.write_access(port)
    folder.write(folder.launch, _launch(settings, port))
    folder.clear_state()
    folder.roll_log()
    output = folder.open_log()
    try:
        return subprocess.Popen(  # noqa: S603 - our own Python, our own module
            [sys.executable, "-m", _SUPERVISOR, str(folder.path)],
            env=server_environment(settings.master),
            # The folder is on the path of a module that is run, so it must be a private one.
            cwd=folder.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # What the server writes is private, its Unix sockets included.
            umask=0o077,
        )
    finally:
        os.close(output)


def _launch(settings: Settings, port: int) -> dict[str, Any]:
    import pyspark

    conf = {
        "spark.app.name": "airflow-eos warm Spark",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": settings.memory,
        # Tasks share it: none waits for the end of another one's jobs.
        "spark.scheduler.mode": "FAIR",
        "spark.log.level": "WARN",
        # Each session has Python workers of its own: they fork with their imports done.
        "spark.python.daemon.module": "airflow_eos.spark.worker_daemon",
        # It authenticates nobody.
        "spark.ui.enabled": "false",
        **local_defaults(settings.master),
    }
    # A heap that is full: the supervisor starts another JVM.
    options = [os.environ.get(jvm.OPTIONS_VARIABLE, ""), "-XX:+ExitOnOutOfMemoryError"]
    if settings.master.startswith("local"):
        # Without the 40 ms of a delayed acknowledgement for each small Python task.
        conf["spark.python.unix.domain.socket.enabled"] = "true"
    if settings.class_data_folder is not None:
        archive = jvm.archive_of(settings.class_data_folder, jvm.java())
        if class_data.is_trusted(archive):
            options += class_data.use_options(archive)
    home = Path(str(pyspark.__file__)).parent
    command = [str(home / "bin" / "spark-submit"), "--master", settings.master]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    return {
        "command": [*command, "--class", _CLASS, "spark-internal"],
        "options": " ".join(filter(None, options)),
        "port": port,
        "idle_seconds": settings.idle_minutes and settings.idle_minutes * 60,
        "shown": {
            "master": settings.master,
            "memory": settings.memory,
            "idle_minutes": settings.idle_minutes,
        },
    }


def server_environment(master: str) -> dict[str, str]:
    """Return the environment of the server: this process's, without what is Airflow's alone.

    Functions of all tasks run there, and need neither Airflow's database nor its keys and connections.
    """
    import pyspark

    paths = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    if "site-packages" not in _ROOT.parts and "dist-packages" not in _ROOT.parts:
        paths.append(str(_ROOT))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_HOME": str(Path(str(pyspark.__file__)).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        env["SPARK_LOCAL_IP"] = HOST
    return {name: value for name, value in env.items() if not name.startswith(_NOT_FOR_SPARK)}


def _wait(folder: ServerFolder, supervisor: subprocess.Popen[bytes] | None) -> bool:
    """Wait until the server takes connections; tell whether it is of this supervisor.

    :param supervisor: None: there was one before.
    """
    mine = supervisor
    deadline = time.monotonic() + START_TIMEOUT + END_TIMEOUT
    while time.monotonic() < deadline:
        ended = None if mine is None else mine.poll()
        if ended == ALREADY_HELD:
            mine = None
        elif ended is not None or (mine is None and not folder.is_held):
            reason = folder.state().get("reason") or "its supervisor ended"
            raise ConfigurationError(
                f"the Spark Connect server did not start: {reason}\n{folder.log_end()}\nmore in {folder.log}"
            )
        found = status(folder.path)
        if found["running"] and (mine is None or found["supervisor_pid"] == mine.pid):
            return mine is not None
        if mine is None and found["host"] not in (None, socket.gethostname()):
            raise ConfigurationError(f"the Spark Connect server of {folder.path} runs on {found['host']}")
        time.sleep(_POLL)
    raise ConfigurationError(f"the Spark Connect server is not ready; see {folder.log}")


def _check(folder: ServerFolder) -> None:
    access = folder.access()
    assert access is not None
    env = server_environment("local")
    try:
        done = subprocess.run(  # noqa: S603 - our own Python, our own text
            [sys.executable, "-c", _CHECK],
            input=access.url,
            env=env,
            cwd=folder.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CHECK_TIMEOUT,
            check=False,
        )
        said, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = f"no answer in {_CHECK_TIMEOUT:g} s", True
    if failed:
        end = said.strip()[-500:].replace(access.token, "***")
        raise ConfigurationError(f"the Spark Connect server does not answer as it should: {end}")
