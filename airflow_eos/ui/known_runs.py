"""The committed runs of a ledger and the brokers' present answers, for a single question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.operations.health import health

if TYPE_CHECKING:
    from airflow_eos.broker.ledger_log.reader import LedgerReader
    from airflow_eos.coverage.folded import Earlier
    from airflow_eos.ledger.records.intent import Intent
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.kafka import TransactionDescription
    from airflow_eos.model.spec import Deployment
    from airflow_eos.operations.checks import Check
    from airflow_eos.ui.broker_answers import BrokerAnswers, SourceLogs
    from airflow_eos.ui.pipeline_history import PipelineHistory

T = TypeVar("T")


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
    """The committed runs of a ledger at one moment, and the brokers' present answers.

    :param pipelines: by name; immutable.
    :param intents: by key: open INTENTs of tables; immutable.
    :param brokers: answers questions that memory cannot.
    """

    deployment: Deployment
    pipelines: Mapping[str, PipelineHistory]
    intents: Mapping[str, Intent]
    reader: LedgerReader
    unreadable: Sequence[str]
    brokers: BrokerAnswers
    # By default in the thread that asks, without a time limit.
    ask_brokers: AskBrokers = lambda _name, call, /, *, seconds=None: call()  # noqa: ARG005

    def coverage(self, pipeline: PipelineHistory) -> Coverage:
        """Return the reads of a pipeline's runs beside the present logs of its source topics."""
        return _coverage(pipeline, self._logs(pipeline.topics), *pipeline.drawn)

    def summaries(self, pipelines: Collection[PipelineHistory]) -> list[Coverage]:
        """Like :meth:`coverage`, for many pipelines and without the runs' names."""
        logs = self._logs({topic for pipeline in pipelines for topic in pipeline.topics})
        return [_coverage(pipeline, logs, (), pipeline.summary) for pipeline in pipelines]

    def _logs(self, topics: Collection[str]) -> SourceLogs:
        names = frozenset(topics)
        return self.ask_brokers(("logs", names), lambda: self.brokers.logs(names))

    def open_transactions(self, *, seconds: float | None = None) -> dict[str, TransactionDescription]:
        """Return the open transactions of this prefix that may be described, by transactional id.

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
