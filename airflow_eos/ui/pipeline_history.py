"""The committed runs of one pipeline in memory: records of the newest, reads of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_eos.coverage.folded import Earlier, folded
from airflow_eos.coverage.lanes import Reset
from airflow_eos.ledger.records.run_record import RunRecord


@dataclass
class PipelineHistory:
    """The committed runs of one pipeline; immutable once a refresh has published it.

    :param runs: the newest ones, by run key, in the order of their commits.
    :param earlier: the reads of older ones.
    :param pruned: the reads of runs whose records are pruned.
    :param characters: size of the kept records' JSON; ``sizes`` of each.
    """

    name: str
    runs: dict[str, RunRecord] = field(default_factory=dict)
    earlier: Earlier = field(default_factory=Earlier)
    resets: Sequence[Reset] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    characters: int = 0
    pruned: Earlier = field(default_factory=Earlier)

    @cached_property
    def summary(self) -> Earlier:
        """The reads of all runs, without the runs' names."""
        summary = self._before_runs()
        for record in self.runs.values():
            summary.add(record)
        return summary

    @cached_property
    def drawn(self) -> tuple[list[RunRecord], Earlier]:
        """The runs that are drawn one by one, and the reads of all others."""
        return folded(self._before_runs(), self.runs.values())

    @property
    def topics(self) -> list[str]:
        """All topics that were read, sorted."""
        summary = self.summary
        return sorted({key.topic for spans in (summary.read, summary.again) for key in spans})

    def copy(self) -> PipelineHistory:
        """Return a mutable copy."""
        return replace(self, runs=dict(self.runs), earlier=self.earlier.copy(), sizes=dict(self.sizes))

    def add(self, record: RunRecord, size: int) -> int:
        """Take the record of a run; return the size of its earlier one, which it replaces."""
        freed = self.drop(record.run_key)
        self.runs[record.run_key] = record
        self.sizes[record.run_key] = size
        self.characters += size
        return freed

    def drop(self, run_key: str) -> int:
        """Remove a record, if there is one; return its size."""
        freed = self.sizes.pop(run_key, 0)
        self.characters -= freed
        self.runs.pop(run_key, None)
        return freed

    def forget_oldest(self) -> int:
        """Keep only the reads of the oldest record; return its size."""
        oldest = next(iter(self.runs.values()))
        self.earlier.add(oldest)
        return self.drop(oldest.run_key)

    def _before_runs(self) -> Earlier:
        """Return the reads of all runs that are not in memory."""
        reads = self.pruned.copy()
        reads.merge(self.earlier)
        return reads
