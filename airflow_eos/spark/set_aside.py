"""Dead letters of a DataFrame process: the records on which it raises are left out of its input.

A search finds them (:mod:`airflow_eos.spark.failing_records`), and the ranges are sealed again without them.
A task reads them once more and makes dead letters of them, which are rows of the same seal. A record is set
aside if ``process`` raises on that record alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_eos.exceptions import ProcessFailed, ProtocolViolation
from airflow_eos.model.dead_letter import FailingRecord
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.dead_letters import SCHEMA, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.spark.dead_letters import DeadLetterRule
    from airflow_eos.spark.failing_records import FailingRecords
    from airflow_eos.spark.seal_task import SealTask

SECONDS = 600.0
"""Time limit of the searches for the records of one seal. No transaction is open meanwhile."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """The records that a seal leaves out of the input of ``process``.

    :param records: sorted.
    :param seconds: time spent on searching for them.
    """

    records: tuple[FailingRecord, ...] = ()
    seconds: float = 0.0

    def without(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without these records, in their order; omits empty parts."""
        left: list[OffsetRange] = []
        for whole in ranges:
            position = whole.start
            for record in (failing.range for failing in self.records):
                if record.topic_partition == whole.topic_partition and position <= record.start < whole.end:
                    left.append(replace(whole, start=position, end=record.start))
                    position = record.end
            left.append(replace(whole, start=position))
        return [part for part in left if part.span]

    def and_more(self, search: FailingRecords, seconds: float, rule: DeadLetterRule, cause: str) -> SetAside:
        """Return these records and those that a search has found.

        :param seconds: duration of the search.
        :param cause: the error that made it necessary.
        :raises ProcessFailed: there are too many, not all are known, or none raises alone.
        """
        together = SetAside(tuple(sorted((*self.records, *search.records))), self.seconds + seconds)
        count = len(together.records)
        rule.check(count, together.records)
        if search.cut_after is not None:
            raise ProcessFailed(
                f"process failed, nothing was written: {cause}. The search for the records that go to "
                f"dead_letter_topic {rule.topic!r} was given up after {together.seconds:.0f} s; it had "
                f"identified {count}. Correct the function, read less in a run, or declare it with "
                "@arrow_process, which needs no search"
            )
        if search.is_not_one_record or not search.records:
            raise ProcessFailed(
                f"process failed, nothing was written: {cause}. It does not fail on any one record alone, so "
                f"no record can go to dead_letter_topic {rule.topic!r}; correct the function"
            )
        return together


class RecordsRaise(Exception):
    """Sealing failed on records that become dead letters: the ranges are sealed again without them."""

    def __init__(self, set_aside: SetAside) -> None:
        super().__init__(f"{len(set_aside.records)} records are set aside")
        self.set_aside = set_aside


@dataclass(frozen=True, slots=True)
class LetterTask:
    """Makes dead letters of the records that are set aside; pickled with the plan.

    :param seal: has the settings of the topic of dead letters.
    :param causes: the error by topic, partition and offset.
    """

    seal: SealTask = field(repr=False)
    rule: DeadLetterRule
    causes: Mapping[tuple[str, int, int], str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield dead letters, in the order in which their records are read."""
        letters = self.seal.letters(self.rule)
        with self.seal.mark.errors():
            for batch in batches:
                for row in range(batch.num_rows):
                    record = batch.slice(row, 1)
                    letters.keep(record, self.causes[place_of(record)])
            if (again := len(letters.records)) != len(self.causes):
                raise ProtocolViolation(f"{len(self.causes)} records were set aside, {again} were read again")
            yield letters.batch()


def letters_of(records: DataFrame, set_aside: SetAside, rule: DeadLetterRule, seal: SealTask) -> DataFrame:
    """Return the dead letters as rows for the sealer.

    :param records: the records that are set aside, read in one task.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    causes = {(each.topic, each.partition, each.offset): each.error for each in set_aside.records}
    letters = records.mapInArrow(LetterTask(seal, rule, causes), from_arrow_schema(SCHEMA))
    return letters.withColumn("timestamp", F.unix_millis("timestamp"))


def with_letters(rows: DataFrame, letters: DataFrame, sink_topic: str | None) -> DataFrame:
    """Return rows for the sealer followed by dead letters.

    :param sink_topic: topic of rows that have no column ``topic``.
    """
    from pyspark.sql import functions as F  # noqa: N812

    named = rows if "topic" in rows.columns else rows.withColumn("topic", F.lit(sink_topic))
    return named.unionByName(letters, allowMissingColumns=True)
