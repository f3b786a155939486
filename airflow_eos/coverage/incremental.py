"""Incremental coverage: keeps the newest runs one by one, and merges the reads of older, plain runs.

The cost of a page then depends on what it shows, not on the number of runs: an old run is narrower than a
pixel. Runs that are not plain keep their record, so that the sentence counts and names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.lanes import LogBounds, Reset
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import TopicPartition

DRAWN_ONE_BY_ONE = 300
"""Newest runs of a pipeline with segments of their own; about as many as 1,000 pixels can show separately."""


class Drawn:
    """The input of :func:`coverage_of` for all runs of a pipeline, updated run by run.

    :param earlier: reads of runs whose records are no longer kept.
    :param records: the records that are kept, in commit order.
    :param one_by_one: number of newest runs that keep their own segments.
    """

    def __init__(
        self, earlier: Earlier, records: Iterable[RunRecord] = (), *, one_by_one: int = DRAWN_ONE_BY_ONE
    ) -> None:
        self._one_by_one = one_by_one
        self._folded = earlier.copy()
        self._older = earlier.copy()  # all runs except the newest, including those that keep their record
        self._named: dict[str, RunRecord] = {}
        self._newest: dict[str, RunRecord] = {}
        for record in records:
            self.add(record)

    def copy(self) -> Drawn:
        """Return a copy, to be changed."""
        copied = Drawn(self._older, one_by_one=self._one_by_one)
        copied._folded = self._folded.copy()
        copied._named, copied._newest = dict(self._named), dict(self._newest)
        return copied

    def __len__(self) -> int:
        """Return the number of runs with segments of their own."""
        return len(self._named) + len(self._newest)

    def add(self, record: RunRecord) -> None:
        """Add a new run; the oldest of the newest runs loses its own segments if it is plain."""
        self._newest[record.run_key] = record
        if len(self._newest) > self._one_by_one:
            oldest = self._newest.pop(next(iter(self._newest)))
            if self._older.is_plain(oldest):
                self._folded.add(oldest)
            else:
                self._named[oldest.run_key] = oldest
            self._older.add(oldest)

    def forget(self, record: RunRecord) -> None:
        """Merge a run into the older ones, because the ledger no longer keeps its record."""
        drawn = self._named.pop(record.run_key, None)
        if drawn is None:
            drawn = self._newest.pop(record.run_key, None)
            if drawn is None:
                return
            self._older.add(drawn)
        self._folded.add(drawn)

    def coverage(
        self,
        bounds: Mapping[TopicPartition, LogBounds],
        topic_ids: Mapping[str, str],
        *,
        resets: Sequence[Reset] = (),
    ) -> Coverage:
        """Return the coverage of all runs; see :func:`coverage_of`."""
        records = [*self._named.values(), *self._newest.values()]
        return coverage_of(records, bounds, topic_ids, resets=resets, earlier=self._folded)
