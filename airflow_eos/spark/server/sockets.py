"""Who listens on a port, and how many are connected to it, as the kernel tells. Linux only (``/proc``)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from airflow_eos.exceptions import ConfigurationError

HOST = "127.0.0.1"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LISTEN = "01", "0A"


def connections_to(port: int) -> int:
    """Return how many clients are connected to a local port."""
    return sum(state == _ESTABLISHED for state, _ in _sockets(port))


def listens(pid: int, port: int) -> bool:
    """Tell whether this process, and not another one, takes connections at the port."""
    inodes = {f"socket:[{inode}]" for state, inode in _sockets(port) if state == _LISTEN}
    if not inodes:
        return False
    try:
        descriptors = list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False
    return any(_target(one.path) in inodes for one in descriptors)


def is_free(port: int) -> bool:
    """Tell whether a server can be bound to the port on loopback."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that nobody uses on loopback."""
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def reserve_ipv6(port: int) -> socket.socket | None:
    """Keep everybody else from listening where clients that connect to ``localhost`` look, too.

    :return: a socket that refuses connections; None: this machine has no IPv6.
    :raises ConfigurationError: somebody has the port.
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
            raise ConfigurationError(f"port {port} of ::1 is taken, which localhost means, too") from error
        return None
    return reserved


def _sockets(port: int) -> Iterator[tuple[str, str]]:
    """Yield state and inode of the sockets whose own port it is."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[3], fields[9]


def _target(link: str) -> str:
    try:
        return str(Path(link).readlink())
    except OSError:
        return ""
