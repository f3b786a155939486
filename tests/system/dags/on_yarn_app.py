"""Copies a topic; the send stops half way until a file releases it."""

from __future__ import annotations

import os
from typing import Any

from airflow_eos.spark import send_task
from airflow_eos_testing.faults.half_send import half_send_task


def process(df: Any) -> Any:
    send_task.SendTask = half_send_task(os.environ["EOS_TEST_MEETING"])  # type: ignore[misc]
    return df.select("key", "value")
