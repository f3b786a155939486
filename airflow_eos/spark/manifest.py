"""The manifest: what the materialised blocks hold, counted where they lie.

One narrow job reads every block but not the batches' bytes. Each owner task checks its rows and answers one
row per target and one per seal task it met; the driver puts them together. Blocks are refused when a seal
partition has rows of two attempts, over all owners, or when a trailer's counts are not met: then the ranges
are sealed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_eos.model.manifest import SealedTarget
from airflow_eos.spark.sealed_rows import READ_TRAILER_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUMMARY_DDL = (
    "kind string, topic string, partition int, seal_partition int, attempt_id bigint, batches bigint, "
    "records bigint, size bigint"
)
_SUMMARY = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("seal_partition", pa.int32()),
        ("attempt_id", pa.int64()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("size", pa.int64()),
    ]
)
_KEYS = ["topic", "partition", "seal_partition", "attempt_id"]


class InconsistentSeal(Exception):
    """The materialised blocks are not the work of one attempt per seal task, or not complete."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """What the materialised blocks hold.

    :param targets: one entry per target partition, sorted.
    :param reads: (records read, late ones) per seal task that reads by itself.
    """

    targets: tuple[SealedTarget, ...]
    reads: Mapping[int, tuple[int, int]]


def read_manifest(sealed: DataFrame) -> BlockCounts:
    """Count what was sealed.

    :raises InconsistentSeal: saying what does not fit.
    """
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        sealed.select(*_KEYS, "seq", "records", F.length("batch").alias("size"))
        .mapInArrow(summarise, SUMMARY_DDL)
        .collect()
    )
    return combine(rows)


def summarise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check one owner's rows and yield its summary; runs in a task.

    Kinds: ``target`` (batches, records, size), ``seal`` (one attempt of a seal task was met), ``task`` (a
    seal task's own trailer: targets and records), ``read`` (late records and records it read), ``problem``
    (counts do not meet a trailer; the text is in ``topic``).
    """
    sealed: dict[tuple[str, int, int, int], list[int]] = {}
    trailers: dict[tuple[str, int, int, int], tuple[int, int]] = {}
    out: list[tuple[Any, ...]] = []
    attempts: set[tuple[int, int]] = set()
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in (*_KEYS, "seq", "records", "size")]
        for topic, partition, seal_partition, attempt_id, seq, records, size in zip(*columns, strict=True):
            attempts.add((seal_partition, attempt_id))
            place = (topic, partition, seal_partition, attempt_id)
            if topic is None:
                kind = "read" if partition == READ_TRAILER_PARTITION else "task"
                out.append((kind, None, None, seal_partition, attempt_id, seq, records, None))
            elif size is None:
                trailers[place] = (seq, records)
            else:
                entry = sealed.setdefault(place, [0, 0, 0, 0])
                entry[0] += 1
                entry[1] += records
                entry[2] += size
                entry[3] += seq
    targets: dict[tuple[str, int], list[int]] = {}
    for place in sealed.keys() | trailers.keys():
        count, records, size, seqs = sealed.get(place, [0, 0, 0, 0])
        topic, partition, seal_partition, attempt_id = place
        # Numbers 0..n-1, each once, have one sum only.
        if trailers.get(place) != (count, records) or seqs != count * (count - 1) // 2:
            said = trailers.get(place, ("no", "no"))
            text = (
                f"seal task {seal_partition} (attempt {attempt_id}) announced {said[0]} batches and "
                f"{said[1]} records for {topic}-{partition}, found {count} and {records}"
            )
            out.append(("problem", text, None, None, None, None, None, None))
        total = targets.setdefault((topic, partition), [0, 0, 0])
        for i, value in enumerate((count, records, size)):
            total[i] += value
    out += [("target", topic, partition, None, None, *t) for (topic, partition), t in targets.items()]
    out += [
        ("seal", None, None, seal_partition, attempt, None, None, None)
        for seal_partition, attempt in attempts
    ]
    if out:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(list(column), kind)
                for column, kind in zip(zip(*out, strict=True), _SUMMARY.types, strict=True)
            ],
            schema=_SUMMARY,
        )


def combine(rows: Iterable[Any]) -> BlockCounts:
    """Put the owners' summaries together.

    :param rows: rows of :data:`SUMMARY_DDL`.
    :raises InconsistentSeal: saying what does not fit.
    """
    attempts: dict[int, int] = {}
    announced: dict[int, tuple[int, int]] = {}
    reads: dict[int, tuple[int, int]] = {}
    targets: list[SealedTarget] = []
    for row in rows:
        if row.kind == "problem":
            raise InconsistentSeal(row.topic)
        if row.kind == "target":
            targets.append(SealedTarget(row.topic, row.partition, row.records, row.batches, row.size))
            continue
        known = attempts.setdefault(row.seal_partition, row.attempt_id)
        if known != row.attempt_id:
            raise InconsistentSeal(
                f"seal task {row.seal_partition} left rows of attempts {known} and {row.attempt_id}: it was "
                "run again"
            )
        if row.kind == "task":
            announced[row.seal_partition] = (row.batches, row.records)
        if row.kind == "read":
            reads[row.seal_partition] = (row.records, row.batches)
    missing = sorted(attempts.keys() - announced.keys())
    if missing or sorted(announced) != list(range(len(announced))):
        raise InconsistentSeal(
            f"seal tasks {missing or sorted(announced)} did not finish, or others are missing"
        )
    records = sum(r for _, r in announced.values())
    if sum(t.records for t in targets) != records:
        raise InconsistentSeal(
            f"seal tasks announced {records} records, the blocks hold {sum(t.records for t in targets)}"
        )
    places = [(t.topic, t.partition) for t in targets]
    if len(set(places)) != len(places):
        raise InconsistentSeal("a target partition has two owners")
    return BlockCounts(tuple(sorted(targets, key=lambda t: (t.topic, t.partition))), reads)
