"""What a task's log says of the states of its run."""

from __future__ import annotations

import logging

import pytest

from airflow_eos.run.states import IN_WORDS, State, Trace


def test_the_log_explains_each_state(caplog: pytest.LogCaptureFixture) -> None:
    """The state's name and the seconds, for programs, then an explanation."""
    assert set(IN_WORDS) == set(State)
    times = iter([10.0, 10.25, 11.5])
    trace = Trace(lambda: next(times))
    with caplog.at_level(logging.INFO, logger="airflow_eos.run.states"):
        trace.enter(State.ASKED)
        trace.enter(State.FENCED)
    assert [record.getMessage() for record in caplog.records] == [
        f"state ASKED after 0.250 s: {IN_WORDS[State.ASKED]}",
        f"state FENCED after 1.500 s: {IN_WORDS[State.FENCED]}",
    ]
