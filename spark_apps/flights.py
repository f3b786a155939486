"""Classify flights by their delay; malformed records go to a dead-letter topic, in the same transaction.

Input: JSON flights ``{"date": "2001/01/01 00:47", "delay": 66, "distance": 1750, "origin": "DTW",
"destination": "LAS"}``, keyed by origin. ``delay`` is in minutes, negative when early; a flight without one
was cancelled.

Output: the flight with its ``class``, under its key and event time. Dead letters keep their bytes; their
headers name the problem and the source offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_LETTER_TOPIC = "flights-dead-letter"

# A flight that is less than 15 minutes late counts as on time (US Department of Transportation).
MINOR, MAJOR, SEVERE = 15, 60, 180

_SCHEMA = "date string, delay int, distance int, origin string, destination string, unreadable string"


def process(df: DataFrame, *, dead_letter_topic: str = DEAD_LETTER_TOPIC) -> DataFrame:
    """Return one output row per input row; pure DataFrame API, without state or other systems.

    :param df: rows of the source topic, with the columns of Spark's Kafka source.
    :param dead_letter_topic: topic of malformed rows; all others go to the run's sink topic.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "unreadable"}
    flights = df.withColumn("flight", F.from_json(F.col("value").cast("string"), _SCHEMA, options))
    flights = flights.withColumn("problem", _problem())
    flight = F.struct("flight.date", "flight.origin", "flight.destination", "flight.delay", "flight.distance")
    classified = F.to_json(flight.withField("class", _delay_class()))
    malformed = F.col("problem").isNotNull()
    return flights.select(
        "key",
        F.when(malformed, F.col("value")).otherwise(classified.cast("binary")).alias("value"),
        # No topic means the run's sink topic.
        F.when(malformed, F.lit(dead_letter_topic)).alias("topic"),
        F.when(malformed, _provenance()).alias("headers"),
        "timestamp",
    )


def _problem() -> Column:
    """Return a column that describes the problem of a row; null if there is none."""
    from pyspark.sql import functions as F  # noqa: N812

    unreadable = F.col("flight").isNull() | F.col("flight.unreadable").isNotNull()
    missing = [F.when(F.col(f"flight.{name}").isNull(), name) for name in ("date", "origin", "destination")]
    names = F.concat_ws(", ", *missing)
    return F.when(unreadable, "not a flight in JSON").when(names != "", F.concat(F.lit("missing: "), names))


def _delay_class() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    delay = F.col("flight.delay")
    return (
        F.when(delay.isNull(), "cancelled")
        .when(delay < MINOR, "on_time")
        .when(delay < MAJOR, "minor")
        .when(delay < SEVERE, "major")
        .otherwise("severe")
    )


def _provenance() -> Column:
    """Return a dead letter's headers: the problem, and the offset the row was read from."""
    from pyspark.sql import functions as F  # noqa: N812

    values = {
        "error": F.col("problem"),
        "source.topic": F.col("topic"),
        "source.partition": F.col("partition").cast("string"),
        "source.offset": F.col("offset").cast("string"),
    }
    return F.array(
        *[
            F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in values.items()
        ]
    )
