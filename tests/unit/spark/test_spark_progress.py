"""Progress lines of a long stage: in order, and none after the last."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from airflow_eos.spark import stage_log


def test_no_line_comes_after_the_one_that_says_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stage ends while Spark is asked for its progress: that answer no longer matters."""
    entered, answer = threading.Event(), threading.Event()

    def tasks() -> tuple[int, int]:
        entered.set()
        answer.wait(60)
        return 1, 4

    monkeypatch.setattr(stage_log, "_watch", lambda _: (tasks, lambda: None))
    caplog.set_level(logging.INFO, stage_log.__name__)
    session: Any = None
    with stage_log.progress(session, "sealing", interval=0.01):
        assert entered.wait(60)
    answer.set()
    for thread in threading.enumerate():
        if thread.name == "airflow-eos-progress":
            thread.join(60)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" in ")[0] for line in lines] == ["sealing: done"]
