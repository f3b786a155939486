"""Time that tests move by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture
def clock(monkeypatch):
    """Deadlines use ``now``; the event loop's own pauses are real."""
    fake = SimpleNamespace(now=1000.0)
    for module in ("backoff", "produce"):
        counted = SimpleNamespace(monotonic=lambda: fake.now)
        monkeypatch.setattr(f"airflow_eos.wire.{module}.time", counted)
    return fake
