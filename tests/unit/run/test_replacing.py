"""A reprocessing replaces rows only if it has read all records of the run again."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from airflow_eos.exceptions import OffsetsOutOfRange
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.run.replacing import refuse_fewer
from tests.support.run_records import run_record

READ = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("before", "again", "skipped", "kept_whole", "refused"),
    [
        (6, 6, 0, {}, None),
        (6, 6, 1, {}, None),
        (6, 5, 0, {"t"}, "read 6 records, its reprocessing 5"),
        (6, None, 0, {"t"}, "read 6 records, its reprocessing 0"),
        (-1, 6, 0, {"t"}, None),
        (6, -1, 0, {"t"}, None),
        (-1, 6, 0, {}, "an unknown number of records, its reprocessing 6"),
        (6, -1, 0, {"u"}, "read 6 records, its reprocessing an unknown number of"),
        (-1, -1, 1, {"t"}, "an unknown number of records, its reprocessing an unknown number of"),
        (0, None, 0, {}, None),
    ],
)
def test_fewer_records_than_the_run_read_replace_nothing(
    before: int, again: int | None, skipped: int, kept_whole: Any, refused: str | None
) -> None:
    """If a count is unknown, only a log that loses records at its start alone still has them all.

    The reprocessing must also skip none of their offsets.
    """
    recorded = run_record(ranges=(OffsetRange("t", 0, 0, 6),), records_read_by_partition={"t-0": before})
    read = {} if again is None else {READ: again}
    with nullcontext() if refused is None else pytest.raises(OffsetsOutOfRange, match=f"^t-0: .*{refused}"):
        refuse_fewer(recorded, [OffsetRange("t", 0, skipped, 6)], read, kept_whole, "iceberg:c/db.t")
