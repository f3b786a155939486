"""Sends sealed rows to the partition of the given number: the one place that asks for Spark's version.

``repartitionById`` (Spark 4.1) takes the number itself. Before, Spark hashes: then each number is replaced by
a key whose hash (Murmur3 x86 32 with seed 42, on an int) leads there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MASK = 0xFFFFFFFF
_SEED = 42


def route(df: DataFrame, tasks: int, column: str) -> DataFrame:
    """Return the rows with ``column`` = i in partition i of ``tasks``; Spark coalesces no given number."""
    if hasattr(df, "repartitionById"):
        return df.repartitionById(tasks, column)
    return route_by_hash(df, tasks, column)


def route_by_hash(df: DataFrame, tasks: int, column: str) -> DataFrame:
    """Do the same by hash keys, for Spark 4.0."""
    from pyspark.sql import functions as F  # noqa: N812 - the field's own name for it

    keys = F.array(*[F.lit(k) for k in hash_keys(tasks)])
    return df.repartition(tasks, F.element_at(keys, F.col(column) + F.lit(1)))


def hash_keys(tasks: int) -> list[int]:
    """Return per partition number an int that Spark's hash partitioning sends there."""
    keys: dict[int, int] = {}
    candidate = 0
    while len(keys) < tasks:
        keys.setdefault(_spark_hash(candidate) % tasks, candidate)
        candidate += 1
    return [keys[i] for i in range(tasks)]


def _spark_hash(value: int) -> int:
    """``Murmur3_x86_32.hashInt(value, 42)`` as a signed number, as Spark's ``Pmod`` sees it."""
    mixed = _rotated((value * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK
    hashed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    hashed ^= 4  # bytes hashed
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
