"""The runs of a ledger, kept in memory and brought up to date: what pages and listings show."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from airflow_eos.broker import KafkaCluster, KafkaLedger, Link
from airflow_eos.broker.ledger_log.reader import LedgerChange, LedgerReader
from airflow_eos.closeable import Closeable
from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.folded import Earlier
from airflow_eos.coverage.incremental import Drawn
from airflow_eos.coverage.segments import LogBounds, Reset
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import LedgerMissing, LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.reset import ResetRecord
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.model.kafka import TransactionState
from airflow_eos.model.ledger import LedgerText
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.checks import Check
from airflow_eos.operations.health import Known, health
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.txn_requests import TransactionStatus

log = logging.getLogger(__name__)

RUNS_KEPT = 2_000
"""Records of one pipeline in memory; of older ones it keeps where they read."""
CHARACTERS_KEPT = 32 << 20
"""JSON of all records in memory, in characters; above it the pipeline that holds most gives up its oldest."""
_UNREADABLE_KEPT = 100
_TRANSACTIONS_ASKED = 200
_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)


@dataclass(slots=True)
class PipelineHistory:
    """The committed runs of one pipeline.

    :param runs: the newest ones, by run key, in the order of their commits.
    :param earlier: what older ones have read.
    :param pruned: what those have read whose records are pruned.
    :param resets: of its cursor.
    :param characters: JSON of the records kept; ``sizes`` of each.
    """

    name: str
    runs: dict[str, RunRecord] = field(default_factory=dict)
    earlier: Earlier = field(default_factory=Earlier)
    resets: list[Reset] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    characters: int = 0
    pruned: Earlier = field(default_factory=Earlier)
    _summary: Earlier | None = field(default_factory=Earlier)
    _drawn: Drawn | None = field(default_factory=lambda: Drawn(Earlier()))

    @property
    def summary(self) -> Earlier:
        """What all runs have read, without which run read what: it is kept up to date, not computed."""
        if self._summary is None:
            self._summary = self.before_runs
            for one in self.runs.values():
                self._summary.add(one)
        return self._summary

    @property
    def before_runs(self) -> Earlier:
        """What those have read that are not among the runs."""
        found = self.pruned.copy()
        found.merge(self.earlier)
        return found

    def prune(self, pruned: Earlier) -> None:
        """Take what the runs have read whose records are pruned, all of them."""
        self.pruned, self._summary, self._drawn = pruned, None, None

    @property
    def drawn(self) -> Drawn:
        """What all runs have read, of the newest with their names: kept up to date, too."""
        if self._drawn is None:
            self._drawn = Drawn(self.before_runs, self.runs.values())
        return self._drawn

    @property
    def newest(self) -> RunRecord:
        """The last run that was committed."""
        return next(reversed(self.runs.values()))

    @property
    def topics(self) -> list[str]:
        """All topics of which something was read, sorted."""
        summary = self.summary
        return sorted({key.topic for spans in (summary.read, summary.again) for key in spans})

    def add(self, record: RunRecord, size: int) -> None:
        """Take the record of a run, instead of one that it may have had."""
        if self.drop(record.run_key) is None:
            if self._summary is not None:
                self._summary.add(record)
            if self._drawn is not None:
                self._drawn.add(record)
        self.runs[record.run_key] = record
        self.sizes[record.run_key] = size
        self.characters += size

    def drop(self, run_key: str) -> RunRecord | None:
        """Take a record out, None where there is none."""
        found = self._take_out(run_key)
        if found is not None:
            self._summary = self._drawn = None
        return found

    def forget_oldest(self) -> None:
        """Keep of the oldest record only where it read."""
        oldest = self._take_out(next(iter(self.runs)))
        assert oldest is not None
        self.earlier.add(oldest)
        if self._drawn is not None:
            self._drawn.forget(oldest)

    def _take_out(self, run_key: str) -> RunRecord | None:
        self.characters -= self.sizes.pop(run_key, 0)
        return self.runs.pop(run_key, None)


@dataclass(frozen=True, slots=True)
class _Logs:
    """What brokers tell of source topics.

    :param bounds: of all partitions.
    :param topic_ids: by topic.
    :param unseen: topics that this principal may not Describe.
    """

    bounds: Mapping[TopicPartition, LogBounds]
    topic_ids: Mapping[str, str]
    unseen: frozenset[str]

    def unseen_of(self, topics: Collection[str]) -> tuple[str, ...]:
        """Return those of these topics that may not be described, sorted."""
        return tuple(sorted(self.unseen.intersection(topics)))


class RunHistory(Closeable):
    """The committed runs of a ledger: :meth:`refresh` reads what is new. Nothing is written.

    Bounded by :data:`RUNS_KEPT` and :data:`CHARACTERS_KEPT`. Not for two threads at a time.

    :param deployment: where; its principal needs Read on the ledger and Describe on the topics.
    :param runs_kept: see :data:`RUNS_KEPT`.
    """

    def __init__(
        self, deployment: Deployment, *, runs_kept: int = RUNS_KEPT, characters_kept: int = CHARACTERS_KEPT
    ) -> None:
        self._deployment = deployment
        config = ClientConfig.of(deployment.kafka)
        self._link = Link(config)
        self._ledger = KafkaLedger(
            config, deployment.ledger, signed_key=keys.SIGNED_KEY, index_keys=keys.INDEX, link=self._link
        )
        self.cluster = KafkaCluster(config, link=self._link)
        self.reader = LedgerReader(
            self._ledger,
            self._link,
            (keys.RUN_RECORDS, keys.RESETS, keys.HORIZONS, keys.INTENTS),
            signed_key=keys.SIGNED_KEY,
        )
        self._runs_kept, self._characters_kept = runs_kept, characters_kept
        self._verified = False
        self._characters = 0
        self._dead: dict[str, tuple[int, int]] = {}
        self.pipelines: dict[str, PipelineHistory] = {}
        self._resets: dict[str, list[Reset]] = {}
        self.intents: dict[str, Intent] = {}
        self.unreadable: list[str] = []

    def close(self) -> None:
        """Close all connections."""
        self.cluster.close()
        self._ledger.close()
        self._link.close()

    def refresh(self) -> None:
        """Read what was committed since the last time.

        :raises LedgerMissing: there is no ledger, and nobody remembers one.
        :raises LedgerReplaced: it is another one than before, or is lost.
        """
        try:
            self._refresh()
        except LedgerMissing:
            with ControlPlane(self._deployment) as control, control.refusing_lost_ledger():
                raise

    def _refresh(self) -> None:
        if not self._verified:
            self._ledger.describe(wait=False)  # whoever looks at a page does not wait for a topic to appear
            with ControlPlane(self._deployment) as control:
                control.verify_ledger()
            self._verified = True
        for _ in range(2):
            if self.reader.look():
                self._forget()
            if not self._read():
                return
            self.reader.start_over()
            self._forget()

    def coverage(self, pipeline: PipelineHistory) -> Coverage:
        """Return what the runs of a pipeline have read, beside what its source topics hold now."""
        logs = self._logs(pipeline.topics)
        coverage = pipeline.drawn.coverage(logs.bounds, logs.topic_ids, resets=pipeline.resets)
        return replace(coverage, unseen=logs.unseen_of(pipeline.topics))

    def summaries(self, pipelines: Collection[PipelineHistory]) -> list[Coverage]:
        """As :meth:`coverage`, of many, whatever their number of runs: segments do not name them."""
        logs = self._logs({topic for one in pipelines for topic in one.topics})
        made = []
        for pipeline in pipelines:
            topics = set(pipeline.topics)
            bounds = {tp: one for tp, one in logs.bounds.items() if tp.topic in topics}
            coverage = coverage_of(
                (), bounds, logs.topic_ids, resets=pipeline.resets, earlier=pipeline.summary
            )
            made.append(replace(coverage, unseen=logs.unseen_of(topics)))
        return made

    def _logs(self, topics: Collection[str]) -> _Logs:
        """Return what brokers tell of topics; those that were deleted since are left out."""
        with self._link.connections() as connections:
            visible, failed = connections.visible_topics(topics)
        partitions = [
            TopicPartition(name, number)
            for name, topic in visible.items()
            for number in sorted(topic.leaders)
        ]
        starts = self.cluster.log_starts(partitions) if partitions else {}
        stables = self.cluster.last_stable_offsets(partitions) if partitions else {}
        return _Logs(
            {one: LogBounds(starts[one], stables[one]) for one in partitions},
            {name: topic.topic_id for name, topic in visible.items()},
            frozenset(name for name, error in failed.items() if error is not None),
        )

    def open_transactions(self) -> dict[str, TransactionStatus]:
        """Return the open transactions of this environment's prefix, by transactional id.

        As far as this principal may Describe them.
        """
        prefix = self._deployment.prefix
        ours = [one for one in self.cluster.open_transactional_ids() if keys.is_id_of(one, prefix)]
        found = {name: self.cluster.describe_transaction(name) for name in ours[:_TRANSACTIONS_ASKED]}
        return {name: one for name, one in found.items() if one is not None and one.state in _OPEN}

    def health(self, *, sources: Collection[str], sinks: Collection[str]) -> list[Check]:
        """Return what can be said of brokers, ledger and these topics, without writing."""
        records = (one for pipeline in self.pipelines.values() for one in pipeline.runs.values())
        ids = {one.producer.producer_id: one.producer.transactional_id for one in records}
        known = Known(list(self.reader.ignored.values()), len(self.unreadable), ids)
        return health(self._deployment, known, sources=sources, sinks=sinks)

    def record(self, pipeline: str, run_key: str) -> RunRecord | None:
        """Return a run's record: one that is not in memory any more is looked up."""
        known = self.pipelines.get(pipeline)
        if known is not None and run_key in known.runs:
            return known.runs[run_key]
        if known is None or not known.earlier.runs:
            return None
        key = keys.run_record_key(run_key)
        value = Authority(self._ledger).peek([key], routing=pipeline).get(key)
        if value is None:
            return None
        found = RunRecord.from_json(value, key)
        return found if found.pipeline == pipeline else None

    def _forget(self) -> None:
        self.pipelines.clear()
        self._characters = 0
        self._resets.clear()
        self.intents.clear()
        self.unreadable.clear()

    def _read(self) -> bool:
        """Take in what is new; return whether all must be read again.

        That is so where a record was dismissed of which only its ranges are kept, and where the record that
        says what is signed is new.
        """
        again = False
        first = not self.pipelines
        for one in self.reader.changes():
            if one.key == keys.SIGNED_KEY:
                again |= not first
            elif one.value is None:
                again |= self._is_dead(one)
            elif (place := self._dead.get(one.key)) is None or place[1] < one.offset:
                self._take(one, one.value)
        return again

    def _is_dead(self, one: LedgerChange) -> bool:
        """Take a tombstone; return whether its record may be one of those that were forgotten."""
        known = self._dead.get(one.key)
        if known is not None and known[1] >= one.offset:
            return False
        self._dead[one.key] = (one.partition, one.offset)
        self.intents.pop(one.key, None)
        if not keys.is_run_record(one.key):
            return False
        name = one.key.removeprefix(keys.RUN_RECORDS)
        for pipeline in self.pipelines.values():
            size = pipeline.characters
            if pipeline.drop(name) is not None:
                self._characters += pipeline.characters - size
                if not pipeline.runs and not pipeline.earlier.runs:
                    del self.pipelines[pipeline.name]
                return False
        return any(pipeline.earlier.runs for pipeline in self.pipelines.values())

    def _take(self, one: LedgerChange, value: LedgerText) -> None:
        try:
            if keys.is_run_record(one.key):
                self._add(_record_of(one.key, value), len(value))
            elif one.key.startswith(keys.HORIZONS):
                horizon = Horizon.from_json(value, one.key)
                self._pipeline(horizon.pipeline).prune(_read_by_pruned(one.key, horizon))
            elif one.key.startswith(keys.INTENTS):
                self.intents[one.key] = Intent.from_json(value, one.key)
            else:
                self._add_reset(one.key, value)
        except LedgerUnreadable as error:
            if len(self.unreadable) < _UNREADABLE_KEPT:
                self.unreadable.append(str(error))

    def _add(self, record: RunRecord, size: int) -> None:
        pipeline = self._pipeline(record.pipeline)
        before = pipeline.characters
        pipeline.add(record, size)
        if len(pipeline.runs) > self._runs_kept:
            pipeline.forget_oldest()
        self._characters += pipeline.characters - before
        while self._characters > self._characters_kept:
            largest = max(self.pipelines.values(), key=lambda one: one.characters)
            if len(largest.runs) == 1:
                return
            before = largest.characters
            largest.forget_oldest()
            self._characters += largest.characters - before

    def _add_reset(self, key: str, value: str) -> None:
        record = ResetRecord.from_json(value, key)
        # reset:<group>/<moment>, and the partition of a mapped cursor
        moment = key.removeprefix(keys.reset_key(record.group, "")).split("/", 1)[0]
        self._resets.setdefault(record.pipeline, []).append(Reset.of(moment, record))

    def _pipeline(self, name: str) -> PipelineHistory:
        found = self.pipelines.get(name)
        if found is None:
            resets = self._resets.setdefault(name, [])
            found = self.pipelines[name] = PipelineHistory(name, resets=resets)
        return found


def _read_by_pruned(key: str, horizon: Horizon) -> Earlier:
    try:
        return Earlier.from_dict(horizon.read)
    except (LookupError, TypeError, ValueError) as error:
        raise LedgerUnreadable(
            f"the ledger's record {key!r} is no horizon: {type(error).__name__}: {error}"
        ) from error


def _record_of(key: str, value: LedgerText) -> RunRecord:
    record = RunRecord.from_json(value, key)
    if keys.run_record_key(record.run_key) != key:
        raise LedgerUnreadable(
            f"the ledger's record {key!r} ({value.place}) is of another run: {record.run_key!r}"
        )
    return record
