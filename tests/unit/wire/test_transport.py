"""Connections: to a host with several addresses, and interrupted by a time-out of the task."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import kafka.errors as kafka_errors
import pytest
from kafka.net.selector import NetworkSelector

from airflow_eos.wire.transport import EventLoop, TcpTransport, connect

SILENT, ANSWERS = "127.0.0.3", "127.0.0.4"
SECONDS = 3.0


@pytest.fixture
def port():
    """A port on two addresses: the first drops packets, like a broken route, the second answers."""
    with ExitStack() as held:

        def opened() -> socket.socket:
            sock = held.enter_context(socket.socket())
            sock.setblocking(False)
            return sock

        answers, silent = opened(), opened()
        answers.bind((ANSWERS, 0))
        answers.listen()
        number = answers.getsockname()[1]
        silent.bind((SILENT, number))
        silent.listen(0)  # the kernel drops further connections while the first is not accepted
        opened().connect_ex((SILENT, number))
        yield number


def connected(monkeypatch, *addresses, port, seconds):
    """Return where a connection to a host of these addresses leads."""
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: infos)
    net = NetworkSelector(slow_task_threshold_secs=0)
    try:
        with net.run(connect(net, "broker", port, (), time.monotonic() + seconds)) as sock:
            return sock.getpeername()[0]
    finally:
        net.close()


def test_an_address_that_drops_packets_leaves_time_for_the_next(monkeypatch, port):
    """Otherwise no try would reach the second address of a host whose IPv6 address leads nowhere."""
    assert connected(monkeypatch, SILENT, ANSWERS, port=port, seconds=SECONDS) == ANSWERS


def test_each_address_without_an_answer_is_named(monkeypatch, port):
    """All addresses, not only the last one."""
    with pytest.raises(kafka_errors.KafkaConnectionError, match=rf"{SILENT}:{port}: .*; {SILENT}:{port}: "):
        connected(monkeypatch, SILENT, SILENT, port=port, seconds=0.6)


class TimedOut(BaseException):
    """Like Airflow's ``AirflowTaskTimeout``, which a signal handler raises at any point of the task."""


def interrupted(*_):
    raise TimedOut


class Interrupted(socket.socket):
    """The time-out strikes while it sends."""

    send = interrupted


@pytest.mark.parametrize("kind", [Interrupted, socket.socket], ids=["sends", "reads"])
def test_a_time_out_of_the_task_ends_the_wait_for_a_broker(kind):
    """kafka-python logs it, closes the connection, and waits on: the time-out would be lost."""
    client, server = socket.socketpair()
    client.setblocking(False)
    with server, closing(EventLoop(slow_task_threshold_secs=0)) as net:
        transport = TcpTransport(net, kind(fileno=client.detach()))
        protocol = SimpleNamespace(_sensors=None, data_received=interrupted, connection_lost=print)
        transport.set_protocol(protocol)
        transport.resume_reading()
        transport.write(b"request")
        server.send(b"answer")
        try:
            with pytest.raises(TimedOut):
                net.run(net.sleep(SECONDS))
        finally:
            transport.abort()
