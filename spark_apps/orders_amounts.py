"""Amounts of orders: a DataFrame function that raises on records that are not orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def process(df: DataFrame) -> DataFrame:
    """Return the amount of each order; the cast raises if it is not a number."""
    amount = F.get_json_object(F.col("value").cast("string"), "$.amount").cast("decimal(12, 2)")
    return df.select("key", amount.cast("string").alias("value"), "timestamp")
