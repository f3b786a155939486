"""The committed runs of a ledger in memory, and current data of the brokers, for a single query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol, TypeVar

from airflow_eos.broker.ledger_log.reader import LedgerReader
from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.folded import Earlier, folded
from airflow_eos.coverage.lanes import Reset
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import TransactionDescription
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.checks import Check
from airflow_eos.operations.health import health
from airflow_eos.ui.broker_answers import BrokerAnswers, SourceLogs

T = TypeVar("T")


@dataclass
class PipelineHistory:
    """The committed runs of one pipeline; immutable once a refresh has published it.

    :param runs: the newest runs, by run key, in commit order.
    :param earlier: the reads of older runs.
    :param pruned: the reads of runs whose records are pruned.
    :param characters: size of the kept records' JSON; ``sizes`` has the size of each.
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
        """Add the record of a run; return the size of its earlier record, which it replaces."""
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


class AskBrokers(Protocol):
    """Runs a call that waits for brokers; calls of one name share one result."""

    def __call__(self, name: Hashable, call: Callable[[], T], /, *, seconds: float | None = None) -> T:
        """Return the result of the call.

        :param seconds: time limit; None for that of the question.
        :raises TimeoutError: it takes longer.
        """
        ...


@dataclass(eq=False, repr=False)
class KnownRuns:
    """The committed runs of a ledger at one moment, and current data of the brokers.

    :param pipelines: pipelines by name; immutable.
    :param intents: open INTENTs of tables by key; immutable.
    :param brokers: provides what is not in memory.
    :param damaged: runs, by pipeline and run key, whose output differed from the receipts at the last check.
    """

    deployment: Deployment
    pipelines: Mapping[str, PipelineHistory]
    intents: Mapping[str, Intent]
    reader: LedgerReader
    unreadable: Sequence[str]
    brokers: BrokerAnswers
    # By default in the calling thread, without a time limit.
    ask_brokers: AskBrokers = lambda _name, call, /, *, seconds=None: call()  # noqa: ARG005
    damaged: Collection[tuple[str, str]] = ()

    def coverage(self, pipeline: PipelineHistory) -> Coverage:
        """Return the reads of a pipeline's runs compared with the current logs of its source topics."""
        return _coverage(pipeline, self._logs(pipeline.topics), *pipeline.drawn)

    def summaries(self, pipelines: Collection[PipelineHistory]) -> list[Coverage]:
        """Like :meth:`coverage`, for many pipelines and without the runs' names."""
        logs = self._logs({topic for pipeline in pipelines for topic in pipeline.topics})
        return [_coverage(pipeline, logs, (), pipeline.summary) for pipeline in pipelines]

    def _logs(self, topics: Collection[str]) -> SourceLogs:
        names = frozenset(topics)
        return self.ask_brokers(("logs", names), lambda: self.brokers.logs(names))

    def open_transactions(self, *, seconds: float | None = None) -> dict[str, TransactionDescription]:
        """Return the open transactions of this prefix that this principal may Describe, by transactional id.

        :raises TimeoutError: a broker takes longer.
        """
        return self.ask_brokers("open transactions", self.brokers.open_transactions, seconds=seconds)

    def health(self, *, sources: Collection[str], sinks: Collection[str]) -> list[Check]:
        """Return the read-only checks of brokers, ledger and these topics."""
        records = (record for pipeline in self.pipelines.values() for record in pipeline.runs.values())
        ids = {record.producer.producer_id: record.producer.transactional_id for record in records}
        look = partial(
            health,
            self.deployment,
            ignored=list(self.reader.ignored.values()),
            unreadable=len(self.unreadable),
            ids=ids,
            sources=sources,
            sinks=sinks,
        )
        checks = self.ask_brokers(("health", frozenset(sources), frozenset(sinks)), look)
        return list(checks)

    def record(self, pipeline: str, run_key: str) -> RunRecord | None:
        """Return a run's record, from memory or from the ledger."""
        runs = self.pipelines.get(pipeline)
        if runs is not None and run_key in runs.runs:
            return runs.runs[run_key]
        if runs is None or not runs.earlier.runs:
            return None
        return self.ask_brokers(("record", pipeline, run_key), lambda: self.brokers.record(pipeline, run_key))


def _coverage(
    pipeline: PipelineHistory, logs: SourceLogs, records: Collection[RunRecord], earlier: Earlier
) -> Coverage:
    topics = set(pipeline.topics)
    bounds = {tp: log for tp, log in logs.bounds.items() if tp.topic in topics}
    coverage = coverage_of(records, bounds, logs.topic_ids, resets=pipeline.resets, earlier=earlier)
    return replace(coverage, unseen=tuple(sorted(logs.unseen & topics)))
