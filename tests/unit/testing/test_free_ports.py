"""Choosing ports for brokers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from airflow_eos_testing import ports
from airflow_eos_testing.exceptions import EmbeddedKafkaError


def test_ports_are_distinct_and_below_the_ephemeral_range():
    """No outgoing connection of the system can take the port of a broker that is down."""
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    free = ports.free_ports(50)

    assert len(set(free)) == 50
    assert all(1024 <= port < lowest_ephemeral for port in free)


def test_a_port_in_use_is_not_offered(monkeypatch):
    """A listening socket excludes its port."""
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports.random.SystemRandom, "randrange", lambda _self, _low, _high: number)

        with pytest.raises(EmbeddedKafkaError, match="Found only 0 of 1 free ports"):
            ports.free_ports(1)


def test_a_port_is_free_at_once_when_its_server_is_gone():
    """The server closed first: its connection is in TIME_WAIT, which blocks no other server."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((ports.HOST, 0))
        server.listen()
        number = server.getsockname()[1]
        assert not ports.is_free(number)
        with socket.create_connection((ports.HOST, number)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert ports.is_free(number)
