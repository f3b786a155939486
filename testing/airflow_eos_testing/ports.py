"""Free TCP ports that stay free while a broker is down."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from airflow_eos_testing.exceptions import EmbeddedKafkaError

HOST = "127.0.0.1"
_LOWEST = 10_000
_HIGHEST = 32_768
_ENOUGH = 1000


def free_ports(count: int) -> list[int]:
    """Return distinct loopback ports that nothing listens on, below the system's ephemeral range.

    An ephemeral port would be a trap: while a killed broker is down, the system may assign its port to any
    outgoing connection, and a client that keeps reconnecting to it may connect to itself.
    The ports are not reserved: the caller must be ready to retry with others.
    """
    lowest, highest = _LOWEST, _ephemeral_start()
    if highest - lowest < _ENOUGH:
        lowest, highest = 1024, max(highest, _HIGHEST)
    chooser = random.SystemRandom()  # never the seeded generator of a test: two runs would collide
    ports: list[int] = []
    for _ in range(_ENOUGH):
        port = chooser.randrange(lowest, highest)
        if port not in ports and is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise EmbeddedKafkaError(
        f"Found only {len(ports)} of {count} free ports between {lowest} and {highest} on {HOST}"
    )


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port.

    The address may be reused, as brokers do: the connections of a killed server keep its port for a minute.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
