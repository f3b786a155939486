"""The committed runs of one pipeline in memory: records of the newest, reads of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.incremental import Drawn
from airflow_eos.coverage.lanes import Reset
from airflow_eos.ledger.records.run_record import RunRecord


@dataclass(slots=True)
class PipelineHistory:
    """The committed runs of one pipeline; immutable once a refresh has published it.

    :param runs: the newest ones, by run key, in the order of their commits.
    :param earlier: the reads of older ones.
    :param pruned: the reads of runs whose records are pruned.
    :param resets: of its cursor.
    :param characters: size of the kept records' JSON; ``sizes`` of each.
    """

    name: str
    runs: dict[str, RunRecord] = field(default_factory=dict)
    earlier: Earlier = field(default_factory=Earlier)
    resets: Sequence[Reset] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    characters: int = 0
    pruned: Earlier = field(default_factory=Earlier)
    _summary: Earlier | None = field(default_factory=Earlier)
    _drawn: Drawn | None = field(default_factory=lambda: Drawn(Earlier()))

    @property
    def summary(self) -> Earlier:
        """The reads of all runs, without the runs' names; updated with each run."""
        if self._summary is None:
            summary = self.before_runs
            for record in self.runs.values():
                summary.add(record)
            self._summary = summary  # whole: other threads may ask meanwhile
        return self._summary

    @property
    def before_runs(self) -> Earlier:
        """The reads of all runs that are not in memory."""
        reads = self.pruned.copy()
        reads.merge(self.earlier)
        return reads

    def prune(self, pruned: Earlier) -> None:
        """Take the reads of all runs whose records are pruned."""
        self.pruned, self._summary, self._drawn = pruned, None, None

    @property
    def drawn(self) -> Drawn:
        """The reads of all runs, those of the newest with their names; updated with each run."""
        if self._drawn is None:
            self._drawn = Drawn(self.before_runs, self.runs.values())
        return self._drawn

    @property
    def newest(self) -> RunRecord:
        """The last committed run."""
        return next(reversed(self.runs.values()))

    @property
    def topics(self) -> list[str]:
        """All topics that were read, sorted."""
        summary = self.summary
        return sorted({key.topic for spans in (summary.read, summary.again) for key in spans})

    def copy(self) -> PipelineHistory:
        """Return a mutable copy."""
        return PipelineHistory(
            self.name,
            dict(self.runs),
            self.earlier.copy(),
            self.resets,
            dict(self.sizes),
            self.characters,
            self.pruned,
            None if self._summary is None else self._summary.copy(),
            None if self._drawn is None else self._drawn.copy(),
        )

    def add(self, record: RunRecord, size: int) -> None:
        """Take the record of a run; replaces its earlier one."""
        if self.drop(record.run_key) is None:
            if self._summary is not None:
                self._summary.add(record)
            if self._drawn is not None:
                self._drawn.add(record)
        self.runs[record.run_key] = record
        self.sizes[record.run_key] = size
        self.characters += size

    def drop(self, run_key: str) -> RunRecord | None:
        """Remove a record and return it; None if there is none."""
        record = self._take_out(run_key)
        if record is not None:
            self._summary = self._drawn = None
        return record

    def forget_oldest(self) -> None:
        """Keep only the reads of the oldest record."""
        oldest = self._take_out(next(iter(self.runs)))
        assert oldest is not None
        self.earlier.add(oldest)
        if self._drawn is not None:
            self._drawn.forget(oldest)

    def _take_out(self, run_key: str) -> RunRecord | None:
        self.characters -= self.sizes.pop(run_key, 0)
        return self.runs.pop(run_key, None)
