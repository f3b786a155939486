"""The manifest of materialised blocks.

One narrow job reads a few numbers per block, without the batches' bytes and without Python workers. The
driver refuses blocks if a seal task has rows of two attempts, a target is in two owner tasks, or the rows do
not match the counts of a trailer; the ranges are then sealed again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.output import SealedTarget
from airflow_eos.spark.sealed_rows import DEAD_TRAILER_PARTITION, READ_TRAILER_PARTITION, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class InconsistentSeal(Exception):
    """The materialised blocks are incomplete, or come from several attempts of a seal task."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """The counts of materialised blocks.

    :param targets: one entry per target partition, sorted.
    :param reads: (records read, late ones) per slice, if seal tasks read by themselves.
    :param attempts: Spark's unique number of the attempt that made the rows, per seal task.
    :param dead_letters: records on which the process raised.
    :param failing: the records that the dead letters' trailers name, in the order of their tasks.
    """

    targets: tuple[SealedTarget, ...]
    reads: Mapping[int, tuple[int, int]]
    attempts: Mapping[int, int]
    dead_letters: int
    failing: tuple[FailingRecord, ...]


def read_manifest(sealed: DataFrame) -> BlockCounts:
    """Count the sealed rows.

    :raises InconsistentSeal: names the difference.
    """
    from pyspark.sql import functions as F  # noqa: N812

    numbers = sealed.select(
        F.spark_partition_id().alias("task"),
        *SCHEMA.names[1:-1],
        F.length("batch").alias("size"),
        F.when(F.col("topic").isNull(), F.col("batch")).alias("note"),
    )
    batches = numbers.toArrow().to_batches()
    return count_blocks(
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )


def count_blocks(rows: Iterable[Iterable[Any]]) -> BlockCounts:
    """Check the numbers of all blocks and sum them up.

    :param rows: of each sealed row, in any order: owner task, the columns between owner and batch, bytes of
        the batch, and a trailer's text.
    :raises InconsistentSeal: names the difference.
    """
    blocks = _Blocks()
    for row in rows:
        blocks.add(row)
    return blocks.checked()


@dataclass
class _Sealed:
    batches: int = 0
    records: int = 0
    size: int = 0
    seqs: int = 0
    announced: tuple[int, int] | None = None

    @property
    def complete(self) -> bool:
        # The sum of 0..n-1 detects a repeated or missing number.
        whole = self.seqs == self.batches * (self.batches - 1) // 2
        return whole and self.announced == (self.batches, self.records)


@dataclass
class _Blocks:
    attempts: dict[int, int] = field(default_factory=dict)
    owners: dict[tuple[str, int], int] = field(default_factory=dict)
    sealed: defaultdict[tuple[str, int, int], _Sealed] = field(default_factory=lambda: defaultdict(_Sealed))
    totals: dict[int, int] = field(default_factory=dict)
    reads: dict[int, tuple[int, int]] = field(default_factory=dict)
    dead_letters: int = 0
    failing: dict[int, list[FailingRecord]] = field(default_factory=dict)

    def add(self, row: Iterable[Any]) -> None:
        task, topic, partition, seal_partition, attempt, seq, records, size, note = row
        first = self.attempts.setdefault(seal_partition, attempt)
        if first != attempt:
            raise InconsistentSeal(
                f"seal task {seal_partition} left rows of attempts {first} and {attempt}: it was run again"
            )
        if topic is None:
            if partition <= READ_TRAILER_PARTITION:
                number = READ_TRAILER_PARTITION - partition
                if number in self.reads:
                    raise InconsistentSeal(
                        f"slice {number} was read twice, by seal task {seal_partition} too"
                    )
                self.reads[number] = (records, seq)
            elif partition == DEAD_TRAILER_PARTITION:
                self.dead_letters += records
                self.failing[seal_partition] = list(map(FailingRecord.from_list, json.loads(note or b"[]")))
            else:
                self.totals[seal_partition] = records
            return
        owner = self.owners.setdefault((topic, partition), task)
        if owner != task:
            raise InconsistentSeal(f"{topic}-{partition} lies in two owner tasks, {owner} and {task}")
        sealed = self.sealed[topic, partition, seal_partition]
        if size is None:
            sealed.announced = (seq, records)
            return
        sealed.batches += 1
        sealed.records += records
        sealed.size += size
        sealed.seqs += seq

    def checked(self) -> BlockCounts:
        targets: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for (topic, partition, seal_partition), sealed in self.sealed.items():
            if not sealed.complete:
                announced_here = sealed.announced or ("no", "no")
                raise InconsistentSeal(
                    f"seal task {seal_partition} (attempt {self.attempts[seal_partition]}) announced "
                    f"{announced_here[0]} batches and {announced_here[1]} records for {topic}-{partition}, "
                    f"found {sealed.batches} and {sealed.records}"
                )
            total = targets[topic, partition]
            for i, value in enumerate((sealed.records, sealed.batches, sealed.size)):
                total[i] += value
        missing = sorted(self.attempts.keys() - self.totals.keys())
        if missing or sorted(self.totals) != list(range(len(self.totals))):
            raise InconsistentSeal(
                f"seal tasks {missing or sorted(self.totals)} did not finish, or others are missing"
            )
        announced, stored = sum(self.totals.values()), sum(total[0] for total in targets.values())
        if stored != announced:
            raise InconsistentSeal(f"seal tasks announced {announced} records, the blocks hold {stored}")
        return BlockCounts(
            tuple(SealedTarget(*tp, *targets[tp]) for tp in sorted(targets)),
            self.reads,
            self.attempts,
            self.dead_letters,
            tuple(record for _, of_task in sorted(self.failing.items()) for record in of_task),
        )
