"""Coverage kept up to date: the newest runs one by one, and of plain ones before them only where they read.

What a page draws costs then what it shows, not what the pipeline has run: a run that lies far behind is
narrower than a pixel. Runs that are not plain stay by name, so that the sentence counts and names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.segments import LogBounds, Reset
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.model.ranges import TopicPartition

DRAWN_ONE_BY_ONE = 300
"""Newest runs of a pipeline with segments of their own: a drawing of 1,000 pixels can tell as many apart."""


class Drawn:
    """What :func:`coverage_of` needs of all runs of a pipeline, brought up to date run by run.

    :param earlier: what runs have read whose records are no longer kept.
    :param records: those that are, in the order of their commits.
    :param one_by_one: newest runs that keep their segments.
    """

    def __init__(
        self, earlier: Earlier, records: Iterable[RunRecord] = (), *, one_by_one: int = DRAWN_ONE_BY_ONE
    ) -> None:
        self._one_by_one = one_by_one
        self._folded = earlier.copy()
        self._older = earlier.copy()  # all that are not among the newest, also those that keep their names
        self._named: dict[str, RunRecord] = {}
        self._newest: dict[str, RunRecord] = {}
        for one in records:
            self.add(one)

    def __len__(self) -> int:
        """Return how many runs have segments of their own."""
        return len(self._named) + len(self._newest)

    def add(self, record: RunRecord) -> None:
        """Take a new run: the oldest of the newest gives up its segments for it, where it is plain."""
        self._newest[record.run_key] = record
        if len(self._newest) > self._one_by_one:
            oldest = self._newest.pop(next(iter(self._newest)))
            if self._older.is_plain(oldest):
                self._folded.add(oldest)
            else:
                self._named[oldest.run_key] = oldest
            self._older.add(oldest)

    def forget(self, record: RunRecord) -> None:
        """Keep of a run only where it read: its record is no longer kept."""
        known = self._named.pop(record.run_key, None)
        if known is None:
            known = self._newest.pop(record.run_key, None)
            if known is None:
                return
            self._older.add(known)
        self._folded.add(known)

    def coverage(
        self,
        bounds: Mapping[TopicPartition, LogBounds],
        topic_ids: Mapping[str, str],
        *,
        resets: Sequence[Reset] = (),
    ) -> Coverage:
        """Return what all runs have read; see :func:`coverage_of`."""
        records = [*self._named.values(), *self._newest.values()]
        return coverage_of(records, bounds, topic_ids, resets=resets, earlier=self._folded)
