"""How spans of time are spelt out."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_eos.wording import span_text


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (dt.timedelta(0), "0 seconds"),
        (dt.timedelta(seconds=1, milliseconds=900), "1 second"),
        (dt.timedelta(minutes=15), "15 minutes"),
        (dt.timedelta(hours=1, minutes=30, seconds=5), "1 hour 30 minutes"),
        (dt.timedelta(hours=1, seconds=5), "1 hour"),
        (dt.timedelta(days=7), "7 days"),
        (dt.timedelta(days=9, hours=23), "9 days 23 hours"),
        (dt.timedelta(days=10, hours=23), "10 days"),
        (dt.timedelta(days=3_118, hours=1), "3,118 days"),
    ],
)
def test_a_span_is_said_by_its_two_largest_units(span, text):
    assert span_text(span) == text
