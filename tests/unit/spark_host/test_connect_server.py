"""Preparations of the host's Spark Connect server: its private folder, token, ports and environment."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark_host import connect_server
from airflow_eos.spark_host.connect_server import (
    CONN_ID,
    CONNECTION_FILE,
    TOKEN_VARIABLE,
    Launch,
    prepare,
    read_access,
    server_environment,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "server"


def start(folder: Path, **settings: object) -> Launch:
    """Prepare a server, as one that has ended since: its lock is released."""
    launch = prepare(folder, **settings)  # type: ignore[arg-type]
    release(folder)
    return launch


def release(folder: Path) -> None:
    """Close what :func:`prepare` holds until its process ends."""
    port = json.loads((folder / CONNECTION_FILE).read_text())[CONN_ID]["port"]
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        number = int(entry.name)
        if target == str(folder) and os.get_inheritable(number):
            os.close(number)
        elif target.startswith("socket:") and os.get_inheritable(number):
            with socket.socket(fileno=os.dup(number)) as held:
                name = held.getsockname()
            if name[:2] == ("::1", port):
                os.close(number)


def test_the_token_is_private_and_in_no_command(folder: Path) -> None:
    """Whatever the umask: in the file and in the environment of the JVM."""
    before = os.umask(0)
    try:
        launch = start(folder)
    finally:
        os.umask(before)
    token = launch.access.token
    assert len(token) > 40
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()] == [0o600]
    assert token not in " ".join(launch.command)
    assert token not in repr(launch)
    assert launch.environment[TOKEN_VARIABLE] == token
    assert launch.connection == folder / CONNECTION_FILE
    (connection,) = json.loads(launch.connection.read_text()).values()
    assert connection == launch.access.connection()


def test_port_and_token_stay(folder: Path) -> None:
    """The connection in Airflow stays valid; with another port the token stays."""
    assert read_access(folder) is None
    first = start(folder).access
    assert start(folder).access == first == read_access(folder)
    other = replace(first, port=connect_server._free_port())
    assert start(folder, port=other.port).access == other


def test_one_server_has_the_folder(folder: Path) -> None:
    """As long as its process lives, in whatever state; the connection of the first one stays valid."""
    prepare(folder)
    first = read_access(folder)
    with pytest.raises(ConfigurationError, match=r"of .*server runs already"):
        prepare(folder, port=connect_server._free_port())
    assert read_access(folder) == first
    release(folder)
    start(folder)


def test_a_port_in_use_is_named(folder: Path) -> None:
    """A given port, or that of the last start: another one would make the connection in Airflow wrong."""
    port = start(folder).access.port
    with socket.create_server(("127.0.0.1", port)):
        for given in (port, None):
            with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is in use; with another"):
                start(folder, port=given)


def test_nobody_else_answers_for_localhost(folder: Path) -> None:
    """The port is also held on ::1, without accepting; if another process has it, that is an error."""
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of ::1 is in use"):
            connect_server._reserve_ipv6(port)
    held = connect_server._reserve_ipv6(port)
    assert held is not None
    with socket.socket(fileno=held), socket.socket(socket.AF_INET6) as late:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("::1", port), timeout=5)
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            late.bind(("::1", port))


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    """Another user may have put files there."""
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match="server is not private"):
        start(folder)
    with pytest.raises(ConfigurationError, match="server is not private"):
        read_access(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_or_a_link_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its mode."""
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="folder of the Spark Connect server"):
        start(folder)
    folder.unlink()
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="server is not private"):
        start(folder)


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "readable", "fifo", "not JSON", "no token"])
def test_a_planted_connection_is_refused(folder: Path, tmp_path: Path, kind: str) -> None:
    """Its author would know the token; nothing is started, and nothing is overwritten."""
    connection = start(folder).connection
    text = connection.read_text()
    other = tmp_path / "planted.json"
    other.write_text(text)
    other.chmod(0o600)
    if kind == "readable":
        connection.chmod(0o640)
    elif kind in ("not JSON", "no token"):
        connection.write_text({"not JSON": "[", "no token": json.dumps({CONN_ID: {"port": 7}})}[kind])
    else:
        connection.unlink()
        links = {"symbolic link": connection.symlink_to, "hard link": connection.hardlink_to}
        if kind == "fifo":
            os.mkfifo(connection, 0o600)
        else:
            links[kind](other)
    with pytest.raises(ConfigurationError, match=r"connection\.json"):
        prepare(folder)
    assert other.read_text() == text


@pytest.mark.parametrize("port", [70_000, 0, -1, 10**30, True])
def test_a_connection_to_no_port_is_refused(folder: Path, port: int) -> None:
    connection = start(folder).connection
    connection.write_text(json.dumps({CONN_ID: {"port": port, "password": "token"}}))
    for use in (read_access, start):
        with pytest.raises(ConfigurationError, match=r"connection\.json holds no connection"):
            use(folder)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_in_place_of_the_working_folder_is_named(folder: Path, kind: str) -> None:
    """No lock is left: the next start finds no server."""
    start(folder)
    work = folder / "work"
    work.rmdir()
    if kind == "file":
        work.touch()
    else:
        work.symlink_to(folder.parent)
    with pytest.raises(ConfigurationError, match="work must be a folder"):
        start(folder)
    work.unlink()
    assert start(folder).work.is_dir()


def test_the_server_gets_no_secrets_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the address of another server; the paths of modules are absolute."""
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    secrets = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "s3cret",
        "AIRFLOW_CONN_KAFKA_DEFAULT": "s3cret",
        "AIRFLOW_VAR_KEY": "s3cret",
        TOKEN_VARIABLE: "s3cret",
        "SPARK_REMOTE": "s3cret",
    }
    for name, value in {**secrets, "AIRFLOW_HOME": "/kept", "KEPT": "too"}.items():
        monkeypatch.setenv(name, value)
    environment = server_environment("local[2]")
    assert "s3cret" not in environment.values()
    assert (environment["AIRFLOW_HOME"], environment["KEPT"], environment["SPARK_LOCAL_IP"]) == (
        "/kept",
        "too",
        "127.0.0.1",
    )
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(Path("somewhere").absolute())
    assert "SPARK_LOCAL_IP" not in server_environment("spark://master:7077")


def test_a_local_server_is_private_and_a_cluster_reaches_its_driver(folder: Path) -> None:
    """A local server has the settings of a local driver, one on a cluster only the UI's."""
    assert {"spark.authenticate=true", "spark.driver.host=127.0.0.1"} <= set(start(folder).command)
    on_cluster = " ".join(start(folder, master="spark://master:7077").command)
    assert "spark.authenticate" not in on_cluster
    assert "spark.driver.host" not in on_cluster
    assert "spark.ui.enabled=false" in on_cluster


def test_without_spark_itself_there_is_no_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Spark's client is installed."""
    monkeypatch.setattr("pyspark.util.is_remote_only", lambda: True)
    with pytest.raises(ConfigurationError, match="only Spark's client"):
        start(folder)


def test_a_spark_that_takes_no_token_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would serve every user of the host."""
    monkeypatch.setattr(connect_server, "_TOKEN_CHECK", "absent.class")
    with pytest.raises(ConfigurationError, match="takes no token: install a newer Spark"):
        start(folder)
