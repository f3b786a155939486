"""Whether a second attempt of a send task may be a speculative copy, or proves that the first is lost."""

from __future__ import annotations

import pytest

from airflow_eos.spark.session import speculates


class Session:
    """A session with one setting, none, or without an answer."""

    def __init__(self, value):
        self.conf = self
        self._value = value

    def get(self, key, default):
        assert key == "spark.speculation"
        if isinstance(self._value, Exception):
            raise self._value
        return default if self._value is None else self._value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("false", False), ("true", True), ("TRUE", True), (RuntimeError("hidden"), True)],
)
def test_speculation_is_taken_for_on_where_spark_does_not_say(value, expected):
    """It must wait for the first attempt; an unnecessary wait only costs time."""
    assert speculates(Session(value)) is expected
