"""Load customers into a PostgreSQL table: the newest record of a customer's id is its row.

Input: JSON customers with ``id``, ``name`` and ``since``. Tombstones are ignored: no row is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def process(df: DataFrame) -> DataFrame:
    """Return one row of the table per input row with a value."""
    from pyspark.sql.functions import col, from_json

    customer = from_json(col("value").cast("string"), "id long, name string, since timestamp")
    return df.where("value is not null").select(customer.alias("customer")).select("customer.*")
