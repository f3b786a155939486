"""Fixtures of the tests that talk to real brokers."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def unused_port():
    """A port of loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
