"""Removes old run records from a ledger, and keeps digests of their keys.

One transaction per batch writes tombstones for the records of some runs, the digests of their keys, and the
offsets they have read (:mod:`airflow_eos.ledger.records.horizon`), all in the pipeline's partition: a look-up
sees either the record or the digest, and a pruned run that starts again is refused. Concurrent prunings fence
each other; a crash leaves no partial batch.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_eos.coverage.folded import Earlier
from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority, answer_of, is_pruned
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.pruned import PrunedRuns
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.ledger import LedgerMessage, LedgerValue
from airflow_eos.model.ranges import TopicPartition, timestamp_of
from airflow_eos.model.versioned import readable
from airflow_eos.operations.gaps import covered
from airflow_eos.ports import Cluster, Ledger

log = logging.getLogger(__name__)

BATCH_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class OldRun:
    """A committed run with its rounds and reprocessings, whose records are read again for pruning.

    :param key: key of the whole run.
    :param run_keys: run keys of its records, in commit order.
    :param staged_at: latest time of its records, by the drivers' clocks.
    :param offset: offset of the last record.
    :param producers: producer id and epoch of each record.
    """

    pipeline: str
    key: str
    run_keys: tuple[str, ...] = ()
    staged_at: str = ""
    offset: int = -1
    transactional_id: str = ""
    producers: frozenset[tuple[int, int]] = frozenset()
    written: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class Pruner:
    """Prunes one ledger, partition by partition.

    :param prefix: the ledger's prefix.
    :param min_age: records that are younger, by the broker's clock, are not pruned.
    """

    cluster: Cluster
    ledger: Ledger
    writer: LedgerWriter
    authority: Authority
    prefix: str
    min_age: dt.timedelta

    def old_runs(self, partition: int, before: str, pipeline: str | None = None) -> list[OldRun]:
        """Return the runs whose records are no longer needed, in commit order.

        It keeps runs with a record at or after ``before`` or in an open transaction, runs whose rounds have
        not ended, the last run of each pipeline and of each cursor, the run that a cursor names, and runs
        whose transaction is open on a leader.

        A record is old only if both its writer's clock (``staged_at``) and the broker's say so.

        :param before: UTC, in the format of run records.
        """
        answer = answer_of(self.ledger.view(partition, (), (keys.RUN_RECORDS,)))
        open_keys = {
            keys.whole_run_key(entry.key.removeprefix(keys.RUN_RECORDS)) for entry in answer.open_records
        }
        since = self._first_since(partition, keys.utc_moment(before))
        runs = _runs_of(answer.committed, open_keys)
        kept = _latest_runs(runs) | self._named_by_cursors
        chosen = [
            run
            for run in runs
            if (run.pipeline, run.key) not in kept
            and run.staged_at < before
            and (since is None or run.offset < since)
            and any(map(keys.ends_run, run.run_keys))
            and (pipeline is None or run.pipeline == pipeline)
        ]
        hanging = self._open_producers(chosen, partition)
        return [run for run in chosen if hanging.isdisjoint(run.producers)]

    def _first_since(self, partition: int, moment: dt.datetime) -> int | None:
        """Return the first offset that the broker wrote at this time or later; None if there is none."""
        tp = TopicPartition(self.ledger.topic, partition)
        timestamp = max(timestamp_of(moment), 0)  # negative values have special meanings
        first = self.cluster.offsets_for_time([tp], timestamp, markers=True)[tp]
        return None if first is None else first.offset

    def prune(self, partition: int, before: str, runs: Sequence[OldRun]) -> list[OldRun]:
        """Remove the records of runs; return those removed by this call.

        The runs of a pipeline stay, with a warning, if its record of pruned runs is unreadable.

        :param runs: runs of this partition, from :meth:`old_runs`.
        :raises ConfigurationError: by the broker's clock, ``before`` is not ``min_age`` ago; nothing is
            removed.
        :raises RunFenced: another process is pruning the partition.
        :raises NotYetVisible: a batch is committed, but its marker is missing.
        """
        pruned: list[OldRun] = []
        by_pipeline: defaultdict[str, list[OldRun]] = defaultdict(list)
        for run in runs:
            by_pipeline[run.pipeline].append(run)
        for pipeline, pipeline_runs in sorted(by_pipeline.items()):
            batches = _batches(pipeline_runs)
            try:
                for batch in batches:
                    pruned += self._prune(partition, before, pipeline, batch)
            except LedgerUnreadable as error:
                log.warning("The runs of the pipeline %r are kept: %s", pipeline, error)
        return pruned

    def _prune(self, partition: int, before: str, pipeline: str, batch: Sequence[OldRun]) -> list[OldRun]:
        name = keys.prune_transactional_id(self.prefix, self.ledger.topic, partition)
        with self.writer.fenced(name, [TopicPartition(self.ledger.topic, partition)]) as transaction:
            buckets = {keys.pruned_key(pipeline, run.key) for run in batch}
            horizon_key = keys.horizon_key(pipeline)
            stored = self.authority.settle_in(partition, [*buckets, horizon_key, *_record_keys(batch)])
            new = [run for run in batch if not is_pruned(run.key, pipeline, stored)]
            if not new:
                return []
            producer = transaction.identity.producer_id, transaction.identity.producer_epoch
            tombstones = _record_keys(new)
            removed = {key: stored[key] for key in tombstones if key in stored}
            values = _digests(stored, before, pipeline, new, producer)
            values[horizon_key] = _horizon_after(
                stored.get(horizon_key), before, pipeline, removed, len(new)
            ).to_json(producer)
            transaction.commit(
                [
                    *(LedgerMessage(key, None, "", partition) for key in tombstones),
                    *(LedgerMessage(key, value, "", partition) for key, value in sorted(values.items())),
                ],
                check=lambda _: self._is_past(partition, before),
            )
            transaction.wait_until_seen()
        return new

    def _is_past(self, partition: int, before: str) -> None:
        """Raise if this machine's clock is ahead of the broker's, by the time of the staged messages."""
        if self._first_since(partition, keys.utc_moment(before) + self.min_age) is None:
            raise ConfigurationError(
                f"{before} is less than {self.min_age} ago by the clock of the broker that leads ledger "
                f"partition {partition}: nothing was pruned there; see the clock of this machine"
            )

    @cached_property
    def _named_by_cursors(self) -> set[tuple[str, str]]:
        """The runs that last moved each cursor; cursors may be in any ledger partition."""
        named = set()
        for partition in range(self.ledger.describe().partitions):
            cursors = answer_of(self.ledger.view(partition, (), (keys.CURSORS,))).committed
            for _, cursor in readable(CursorRecord, cursors.items()):
                named.add((cursor.pipeline, keys.whole_run_key(cursor.run_key)))
        return named

    def _open_producers(self, runs: Sequence[OldRun], partition: int) -> set[tuple[int, int]]:
        """Return the producers with an open transaction in partitions that these runs wrote to.

        Their records must stay: they show repair how the transaction was decided.
        """
        written = frozenset[TopicPartition]().union(*(run.written for run in runs))
        partitions: list[TopicPartition] = [TopicPartition(self.ledger.topic, partition)]
        for topic in sorted({tp.topic for tp in written}):
            try:
                existing = self.cluster.describe_topics([topic])[topic].topic_partitions
            except UnknownTopic:
                continue
            partitions += sorted(written & set(existing))
        described = self.cluster.describe_producers(partitions)
        return {
            (producer.producer_id, producer.producer_epoch)
            for producers in described.values()
            for producer in producers
            if producer.is_open
        }


def _runs_of(committed: Mapping[str, LedgerValue], open_keys: Iterable[str]) -> list[OldRun]:
    """Return the runs in commit order; omits runs with an unreadable record."""
    left_out = set(open_keys)
    runs: dict[tuple[str, str], OldRun] = {}
    places: dict[frozenset[TopicPartition], frozenset[TopicPartition]] = {}
    for key, value in sorted(committed.items(), key=lambda item: item[1].offset):
        run_key = key.removeprefix(keys.RUN_RECORDS)
        whole = keys.whole_run_key(run_key)
        try:
            record = RunRecord.from_json(value, key)
        except LedgerUnreadable as error:
            log.warning("Skipped: %s", error)
            left_out.add(whole)
            continue
        if record.run_key != run_key:
            left_out.add(whole)
            continue
        before = runs.get((record.pipeline, whole)) or OldRun(record.pipeline, whole)
        producer = record.producer
        written = before.written | {TopicPartition(it.topic, it.partition) for it in record.receipts}
        runs[record.pipeline, whole] = OldRun(
            record.pipeline,
            whole,
            (*before.run_keys, run_key),
            max(before.staged_at, record.staged_at),
            value.offset,
            producer.transactional_id,
            before.producers | {(producer.producer_id, producer.producer_epoch)},
            places.setdefault(written, written),  # share equal sets to save memory
        )
    readable = (run for run in runs.values() if run.key not in left_out)
    return sorted(readable, key=lambda run: (run.offset, run.key))


def _latest_runs(runs: Sequence[OldRun]) -> set[tuple[str, str]]:
    last: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        last[run.pipeline, ""] = run.pipeline, run.key
        if keys.is_cursor_id(run.transactional_id):
            last[run.pipeline, run.transactional_id] = run.pipeline, run.key
    return set(last.values())


def _record_keys(runs: Sequence[OldRun]) -> list[str]:
    return [keys.run_record_key(run_key) for run in runs for run_key in run.run_keys]


def _digests(
    stored: Mapping[str, LedgerValue],
    before: str,
    pipeline: str,
    runs: Sequence[OldRun],
    producer: tuple[int, int],
) -> dict[str, str]:
    buckets: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        buckets[keys.pruned_key(pipeline, run.key)].add(keys.pruned_digest(run.key))
    values = {}
    for key, digests in buckets.items():
        earlier = PrunedRuns.from_json(stored[key], key) if key in stored else PrunedRuns()
        bucket = PrunedRuns(max(earlier.before, before), earlier.digests | digests)
        values[key] = bucket.to_json(producer)
    return values


def _horizon_after(
    value: LedgerValue | None, before: str, pipeline: str, removed: Mapping[str, LedgerValue], runs: int
) -> Horizon:
    """Return a pipeline's horizon after this number of runs, with these records by key, is pruned."""
    horizon = Horizon(pipeline) if value is None else Horizon.from_json(value, keys.horizon_key(pipeline))
    records = [RunRecord.from_json(run, key) for key, run in removed.items()]
    read = Earlier.of_horizon(horizon)
    for record in records:
        read.add(record)
    spans = sorted(covered(records, [horizon]).items(), key=lambda item: (item[0][1], item[0][2] or 0))
    return Horizon(
        pipeline,
        max(horizon.before, before),
        horizon.runs + runs,
        read.to_dict(),
        tuple((topics, partition, *span) for (_, topics, partition), joined in spans for span in joined),
    )


def _batches(runs: Sequence[OldRun]) -> Iterable[Sequence[OldRun]]:
    batch: list[OldRun] = []
    records = 0
    for run in runs:
        batch.append(run)
        records += len(run.run_keys)
        if records >= BATCH_RECORDS:
            yield batch
            batch, records = [], 0
    if batch:
        yield batch
