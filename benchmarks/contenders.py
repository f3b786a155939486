"""Names of contenders in several measurements."""

from __future__ import annotations

FRAME, ARROW = "airflow-eos, DataFrame", "airflow-eos, Arrow"
TUNED = "Spark at-least-once, tuned"
