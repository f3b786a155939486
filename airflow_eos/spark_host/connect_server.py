"""A Spark Connect server for the tasks of one host: the command ``airflow eos spark-server`` becomes it.

Purpose: tasks of one host share a JVM. The server listens on loopback, and clients need a token.

How it works: :func:`prepare` creates a private folder with the token and checks that a server can start;
:func:`become` replaces this process by Spark's JVM. So systemd, a container engine or a shell supervises one
process, whose signals and exit code are the JVM's.

What it does not do: go to the background, restart, or stop when idle. A service manager does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import zipfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark.encryption import LOOPBACK, server_defaults
from airflow_eos.spark_host import class_data, jvm, worker_daemon

CONN_ID = "spark_warm"
CLIENT_HOST = "localhost"
"""Without TLS, Spark's client sends a token only to this name, not to 127.0.0.1."""
CONNECTION_FILE = "connection.json"
WORK = "work"
"""The server's working folder, emptied at each start."""
_PORTS = range(1, 65_536)
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name, not the token

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_TOKEN_CHECK = "org/apache/spark/sql/connect/service/PreSharedKeyAuthenticationInterceptor.class"  # noqa: S105
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_NOT_FOR_SPARK = ("SPARK_REMOTE", TOKEN_VARIABLE)
_OTHERS = 0o077


@dataclass(frozen=True)
class Access:
    """How clients reach the server."""

    port: int
    token: str = field(repr=False)

    @property
    def address(self) -> str:
        """``sc://host:port``, without the token."""
        return f"sc://{CLIENT_HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The address with the token: a secret."""
        return f"{self.address}/;token={self.token}"

    def connection(self) -> dict[str, Any]:
        """Return the JSON form of an Airflow connection, with the token."""
        return {
            "conn_type": "spark_connect",
            "host": CLIENT_HOST,
            "port": self.port,
            "password": self.token,
        }


@dataclass(frozen=True)
class Launch:
    """A server that is ready to start.

    :param command: argument vector, without secrets.
    :param environment: environment of the server, with the token.
    :param work: working folder, for temporary files.
    :param access: how clients will reach it.
    :param connection: file with the Airflow connection.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    work: Path
    access: Access
    connection: Path


def prepare(
    folder: Path,
    *,
    port: int | None = None,
    memory: str = "1g",
    master: str = "local[*]",
    class_data_folder: Path | None = None,
) -> Launch:
    """Lock the folder, reserve the port for a server in this process, and write the connection file.

    The folder stays locked, and the port on ``::1`` bound, until the process ends, also after ``exec``.

    :param port: port on loopback; None: the last one, at the first start a free one.
    :param memory: heap of the JVM, in Spark's notation; Python workers come on top.
    :param master: Spark master on which it computes.
    :param class_data_folder: where class-data archives are, see :mod:`airflow_eos.spark_host.jvm`.
    :raises ConfigurationError: a server with this folder is running, the port is in use, the folder or file
        is not private, or this Spark cannot run such a server.
    """
    _check_spark()
    folder = folder.absolute()
    descriptor = _private_folder(folder)
    try:
        access = _reserve(descriptor, folder, port)
    except ConfigurationError:
        os.close(descriptor)
        raise
    os.set_inheritable(descriptor, True)  # noqa: FBT003 - its only argument
    work = folder / WORK
    environment = server_environment(master)
    environment |= {
        # Spark reads the variable. In the configuration, the token would appear in the UI and in event logs.
        TOKEN_VARIABLE: access.token,
        jvm.OPTIONS_VARIABLE: _java_options(class_data_folder),
    }
    environment.setdefault("SPARK_LOCAL_DIRS", str(work))
    command = _command(master, memory, access.port)
    return Launch(command, environment, work, access, folder / CONNECTION_FILE)


def _reserve(folder: int, path: Path, wanted_port: int | None) -> Access:
    """Lock the folder, empty the working folder, reserve the port, and write the connection."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"a Spark Connect server of {path} runs already") from None
    work = path / WORK
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigurationError(f"{work} must be a folder that the server can recreate: {error}") from error
    access_before = _read_access(folder, path)
    port = wanted_port or (access_before.port if access_before else _free_port())
    if not _is_free(port):
        raise ConfigurationError(
            f"port {port} of {LOOPBACK} is in use; with another --port, import the connection again"
        )
    reserved = _reserve_ipv6(port)
    if reserved is not None:
        os.set_inheritable(reserved, True)  # noqa: FBT003 - its only argument
    access = Access(port, access_before.token if access_before else secrets.token_urlsafe(32))
    _write_access(folder, access)
    return access


def become(launch: Launch) -> NoReturn:
    """Replace this process by the server."""
    # All files of the server are private, including its Unix sockets.
    os.umask(_OTHERS)
    os.chdir(launch.work)
    os.execve(launch.command[0], launch.command, dict(launch.environment))  # noqa: S606 - no shell is wanted


def read_access(folder: Path) -> Access | None:
    """Return port and token of the last start in a folder; None if there was none.

    :raises ConfigurationError: folder or file are not private, or :func:`prepare` did not write the file.
    """
    if not folder.exists():
        return None
    descriptor = _private_folder(folder.absolute())
    try:
        return _read_access(descriptor, folder)
    finally:
        os.close(descriptor)


def server_environment(master: str) -> dict[str, str]:
    """Return the environment of the server: that of this process without Airflow's own variables.

    Functions of all tasks run there, and must not see Airflow's database, keys and connections.
    """
    import pyspark

    paths = [
        str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path
    ]
    if "site-packages" not in _PACKAGE_ROOT.parts and "dist-packages" not in _PACKAGE_ROOT.parts:
        paths.append(str(_PACKAGE_ROOT))
    environment = {
        **jvm.environment(),
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_HOME": str(Path(str(pyspark.__file__)).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        environment["SPARK_LOCAL_IP"] = LOOPBACK
    return {name: value for name, value in environment.items() if not name.startswith(_NOT_FOR_SPARK)}


def _check_spark() -> None:
    jvm.check_spark()
    import pyspark

    jars = list((Path(str(pyspark.__file__)).parent / "jars").glob("spark-connect_*.jar"))
    if not any(_TOKEN_CHECK in zipfile.ZipFile(jar).namelist() for jar in jars):
        raise ConfigurationError(
            f"the Connect server of Spark {pyspark.__version__} takes no token: install a newer Spark"
        )


def _command(master: str, memory: str, port: int) -> tuple[str, ...]:
    import pyspark

    conf = {
        "spark.app.name": "airflow-eos Spark Connect server",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": memory,
        # Airflow tasks share the server: jobs of one need not wait for those of another.
        "spark.scheduler.mode": "FAIR",
        "spark.log.level": "WARN",
        # A stream keeps the rows since its last reset: a hundred sealed ones take 90 MB in each task.
        "spark.serializer.objectStreamReset": "4",
        # Each session has its own Python workers: they are forked with their imports done.
        "spark.python.daemon.module": worker_daemon.__name__,
        # The UI has no authentication.
        "spark.ui.enabled": "false",
        **server_defaults(master),
    }
    if master.startswith("local"):
        # Over TCP a delayed acknowledgement costs each small Python task 40 ms.
        conf["spark.python.unix.domain.socket.enabled"] = "true"
    submit = Path(str(pyspark.__file__)).parent / "bin" / "spark-submit"
    options = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
    return (str(submit), "--master", master, *options, "--class", _CLASS, "spark-internal")


def _java_options(class_data_folder: Path | None) -> str:
    # A full heap ends the JVM, so that it is restarted instead of staying half dead.
    options = ["-XX:+ExitOnOutOfMemoryError"]
    if class_data_folder is not None:
        archive = jvm.archive_of(class_data_folder, jvm.java())
        if class_data.is_trusted(archive):
            options += class_data.use_options(archive)
    return " ".join(filter(None, (os.environ.get(jvm.OPTIONS_VARIABLE), shlex.join(options))))


# -- the private folder -------------------------------------------------------------------------------------


def _private_folder(folder: Path) -> int:
    """Return a descriptor of the folder, which is created if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigurationError(f"folder of the Spark Connect server: {error}") from error
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        os.close(descriptor)
        raise ConfigurationError(
            f"{folder} is not private: it must belong to this user, with mode 0700 (chmod 700)"
        )
    return descriptor


def _read_access(descriptor: int, folder: Path) -> Access | None:
    path = folder / CONNECTION_FILE
    # O_NONBLOCK: opening a named pipe must not block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(CONNECTION_FILE, flags, dir_fd=descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(file, encoding="utf-8") as opened:
        status = os.fstat(opened.fileno())
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_nlink != 1
            or status.st_mode & _OTHERS
        ):
            raise ConfigurationError(
                f"{path} is not private: it must be a file of this user with mode 0600; remove it for a new "
                "token"
            )
        try:
            connection = json.loads(opened.read())[CONN_ID]
            port, token = connection["port"], connection["password"]
        except (ValueError, KeyError, TypeError):
            port, token = None, None
    if type(port) is not int or port not in _PORTS or not isinstance(token, str) or not token:
        raise ConfigurationError(f"{path} holds no connection {CONN_ID!r}; remove it for a new token")
    return Access(port, token)


def _write_access(descriptor: int, access: Access) -> None:
    """Replace the file atomically; other users cannot read it at any time."""
    staged = f".{CONNECTION_FILE}.{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(staged, flags, 0o600, dir_fd=descriptor), "w", encoding="utf-8") as file:
        file.write(json.dumps({CONN_ID: access.connection()}, indent=2) + "\n")
    os.replace(staged, CONNECTION_FILE, src_dir_fd=descriptor, dst_dir_fd=descriptor)


# -- ports --------------------------------------------------------------------------------------------------


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _reserve_ipv6(port: int) -> int | None:
    """Keep others from listening on ``::1``, which clients that connect to ``localhost`` also try.

    :return: descriptor of a socket that refuses connections; None if this machine has no IPv6.
    :raises ConfigurationError: the port is in use.
    """
    reserved = None
    try:
        reserved = socket.socket(socket.AF_INET6)
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        reserved.bind(("::1", port))
    except OSError as error:
        if reserved is not None:
            reserved.close()
        if isinstance(error, PermissionError) or error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"port {port} of ::1 is in use, which localhost means, too") from error
        return None
    return reserved.detach()
