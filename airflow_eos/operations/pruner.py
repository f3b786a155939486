"""Removes old run records from a ledger, and leaves behind that they were there.

In one transaction per batch: tombstones for the records of some runs, the digests of their keys, and what
they have read (:mod:`airflow_eos.ledger.records.horizon`). All stand in the pipeline's own partition, so a
look-up sees both or neither, and a run that is asked for again is refused, never done again. Two prunings at
the same time fence each other; one that dies leaves no batch behind.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_eos.coverage.folded import Earlier
from airflow_eos.exceptions import ConfigurationError, LedgerUnreadable, UnknownTopic
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority, answer_of
from airflow_eos.ledger.records.cursor import CursorRecord
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.pruned import PrunedRuns
from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.ledger import LedgerMessage, LedgerText
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.ports import Cluster, Ledger
from airflow_eos.run.work import WorkDefinition

log = logging.getLogger(__name__)

BATCH_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class OldRun:
    """A committed run: rounds and reprocessings belong to it. Its records are read again when they go.

    :param key: of the whole run.
    :param run_keys: of its records, in the order of their commits.
    :param staged_at: the latest of theirs, by the clocks of their drivers.
    :param offset: of the last one.
    :param transactional_id: of the last one.
    :param producers: id and epoch of each.
    :param written: where they have written.
    """

    pipeline: str
    key: str
    run_keys: tuple[str, ...]
    staged_at: str
    offset: int
    transactional_id: str
    producers: frozenset[tuple[int, int]]
    written: frozenset[TopicPartition]


class Pruner:
    """Prunes one ledger, partition by partition.

    :param prefix: the ledger's.
    :param min_age: younger records are not pruned, by the clock of the broker.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        writer: LedgerWriter,
        authority: Authority,
        prefix: str,
        min_age: dt.timedelta,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._writer = writer
        self._authority = authority
        self._prefix = prefix
        self._min_age = min_age
        self._at_cursors: set[tuple[str, str]] | None = None

    def old_runs(self, partition: int, before: str, pipeline: str | None = None) -> list[OldRun]:
        """Return the runs whose records are no longer needed, in the order of their commits.

        What stays: runs with a record from ``before`` on or one that is being written, runs whose rounds have
        not ended, the last run of each pipeline and of each cursor, the run that a cursor names, runs whose
        transaction some leader holds for open.

        Two clocks must say that a record is old: its writer's (``staged_at``) and the broker's that took it.

        :param before: UTC, as records write it.
        """
        answer = answer_of(self._ledger.view(partition, (), (keys.RUN_RECORDS,)))
        busy = {keys.whole_run_key(one.key.removeprefix(keys.RUN_RECORDS)) for one in answer.open_records}
        since = self._first_since(partition, _moment(before))
        runs = _runs_of(answer.committed, busy)
        kept = _last_ones(runs) | self._named_by_cursors()
        chosen = [
            one
            for one in runs
            if one.key not in busy
            and (one.pipeline, one.key) not in kept
            and one.staged_at < before
            and (since is None or one.offset < since)
            and any(map(keys.ends_run, one.run_keys))
            and (pipeline is None or one.pipeline == pipeline)
        ]
        hanging = self._open_somewhere(chosen, partition)
        return [one for one in chosen if hanging.isdisjoint(one.producers)]

    def _first_since(self, partition: int, moment: dt.datetime) -> int | None:
        """Return the first offset that the broker wrote at that moment or later; None: there is none."""
        tp = TopicPartition(self._ledger.topic, partition)
        timestamp = max(int(moment.timestamp() * 1000), 0)  # below 0 are questions of another kind
        first = self._cluster.offsets_for_time([tp], timestamp, markers=True)[tp]
        return None if first is None else first.offset

    def prune(self, partition: int, before: str, runs: Sequence[OldRun]) -> int:
        """Remove the records of runs; return of how many runs.

        :param runs: of this partition, as :meth:`old_runs` has found them.
        :raises ConfigurationError: to the broker that moment is not ``min_age`` ago; nothing is removed.
        :raises RunFenced: another prunes the partition.
        :raises NotYetVisible: a batch is committed, and its marker is missing.
        """
        done = 0
        by_pipeline: defaultdict[str, list[OldRun]] = defaultdict(list)
        for run in runs:
            by_pipeline[run.pipeline].append(run)
        for pipeline, its in sorted(by_pipeline.items()):
            for batch in _batches(its):
                done += self._prune(partition, before, pipeline, batch)
        return done

    def _prune(self, partition: int, before: str, pipeline: str, batch: Sequence[OldRun]) -> int:
        name = keys.prune_transactional_id(self._prefix, self._ledger.topic, partition)
        with self._writer.fenced(name, [TopicPartition(self._ledger.topic, partition)]) as transaction:
            buckets = {keys.pruned_key(pipeline, one.key) for one in batch}
            horizon_key = keys.horizon_key(pipeline)
            known = self._authority.settle_in(partition, [*buckets, horizon_key, *_record_keys(batch)])
            new = [one for one in batch if not _is_pruned(known, pipeline, one.key)]
            if not new:
                return 0
            producer = transaction.identity.producer_id, transaction.identity.producer_epoch
            tombstones = _record_keys(new)
            going = {key: known[key] for key in tombstones if key in known}
            values = _digests(known, before, pipeline, new, producer)
            values[horizon_key] = _beyond(known.get(horizon_key), before, pipeline, going, len(new)).to_json(
                producer
            )
            transaction.commit(
                [
                    *(LedgerMessage(key, None, "", partition) for key in tombstones),
                    *(LedgerMessage(key, value, "", partition) for key, value in sorted(values.items())),
                ],
                check=lambda _: self._is_past(partition, before),
            )
            transaction.wait_until_seen()
        return len(new)

    def _is_past(self, partition: int, before: str) -> None:
        """Refuse where the clock of whoever prunes is ahead: what is staged now has the broker's time."""
        if self._first_since(partition, _moment(before) + self._min_age) is None:
            raise ConfigurationError(
                f"{before} is less than {self._min_age} ago by the clock of the broker that leads ledger "
                f"partition {partition}: nothing was pruned there; see the clock of this machine"
            )

    def _named_by_cursors(self) -> set[tuple[str, str]]:
        """Return the runs that moved the cursors last; groups have partitions of their own."""
        if self._at_cursors is not None:
            return self._at_cursors
        named = self._at_cursors = set()
        for partition in range(self._ledger.describe().partitions):
            found = answer_of(self._ledger.view(partition, (), (keys.CURSORS,))).committed
            for key, value in found.items():
                try:
                    cursor = CursorRecord.from_json(value, key)
                except LedgerUnreadable as error:
                    log.warning("left alone: %s", error)
                    continue
                named.add((cursor.pipeline, keys.whole_run_key(cursor.run_key)))
        return named

    def _open_somewhere(self, runs: Sequence[OldRun], partition: int) -> set[tuple[int, int]]:
        """Return id and epoch of the producers that have a transaction open where these runs have written.

        Whoever ends what a broker forgot asks the ledger how it was decided.
        """
        written = frozenset[TopicPartition]().union(*(run.written for run in runs))
        there: list[TopicPartition] = [TopicPartition(self._ledger.topic, partition)]
        for topic in sorted({tp.topic for tp in written}):
            try:
                known = self._cluster.describe_topics([topic])[topic].topic_partitions
            except UnknownTopic:
                continue
            there += sorted(written & set(known))
        producers = self._cluster.describe_producers(there)
        return {
            (one.producer_id, one.producer_epoch)
            for known in producers.values()
            for one in known
            if one.is_open
        }


class _Facts(NamedTuple):
    """What is kept of a record while all of a partition are looked at."""

    offset: int
    staged_at: str
    run_key: str
    transactional_id: str
    producer: tuple[int, int]
    written: frozenset[TopicPartition]


def _runs_of(committed: Mapping[str, str], busy: Iterable[str]) -> list[OldRun]:
    """Return the runs in the order of their commits; one with a record that cannot be read is left out."""
    left_out = set(busy)
    grouped: defaultdict[tuple[str, str], list[_Facts]] = defaultdict(list)
    places: dict[frozenset[TopicPartition], frozenset[TopicPartition]] = {}
    for key, value in committed.items():
        name = key.removeprefix(keys.RUN_RECORDS)
        try:
            record = RunRecord.from_json(value, key)
        except LedgerUnreadable as error:
            log.warning("left alone: %s", error)
            left_out.add(keys.whole_run_key(name))
            continue
        if record.run_key != name:
            left_out.add(keys.whole_run_key(name))
            continue
        by = record.producer
        written = frozenset(TopicPartition(one.topic, one.partition) for one in record.receipts)
        grouped[record.pipeline, keys.whole_run_key(name)].append(
            _Facts(
                value.where[1] if isinstance(value, LedgerText) else sys.maxsize,
                record.staged_at,
                name,
                by.transactional_id,
                (by.producer_id, by.producer_epoch),
                places.setdefault(written, written),  # runs of a pipeline write to the same ones
            )
        )
    found = []
    for (pipeline, key), records in grouped.items():
        if key in left_out:
            continue
        records.sort()
        last = records[-1]
        found.append(
            OldRun(
                pipeline,
                key,
                tuple(one.run_key for one in records),
                max(one.staged_at for one in records),
                last.offset,
                last.transactional_id,
                frozenset(one.producer for one in records),
                frozenset[TopicPartition]().union(*(one.written for one in records)),
            )
        )
    return sorted(found, key=lambda one: (one.offset, one.key))


def _last_ones(runs: Sequence[OldRun]) -> set[tuple[str, str]]:
    """Return the last run of each pipeline, and of each cursor."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    for one in runs:
        last[one.pipeline, ""] = one.pipeline, one.key
        if keys.is_cursor_id(one.transactional_id):
            last[one.pipeline, one.transactional_id] = one.pipeline, one.key
    return set(last.values())


def _record_keys(runs: Sequence[OldRun]) -> list[str]:
    return [keys.run_record_key(one) for run in runs for one in run.run_keys]


def _is_pruned(known: Mapping[str, str], pipeline: str, run_key: str) -> bool:
    key = keys.pruned_key(pipeline, run_key)
    return key in known and keys.pruned_digest(run_key) in PrunedRuns.from_json(known[key], key).digests


def _digests(
    known: Mapping[str, str], before: str, pipeline: str, runs: Sequence[OldRun], producer: tuple[int, int]
) -> dict[str, str]:
    """Return the new values of the buckets of these runs, by key."""
    buckets: defaultdict[str, set[str]] = defaultdict(set)
    for one in runs:
        buckets[keys.pruned_key(pipeline, one.key)].add(keys.pruned_digest(one.key))
    values = {}
    for key, digests in buckets.items():
        earlier = PrunedRuns.from_json(known[key], key) if key in known else PrunedRuns()
        values[key] = earlier.adding(before, digests).to_json(producer)
    return values


def _beyond(value: str | None, before: str, pipeline: str, going: Mapping[str, str], runs: int) -> Horizon:
    """Return what the pruned runs of a pipeline covered, these among them.

    :param going: their records, by key, in the order of their commits.
    :param runs: how many.
    """
    known = Horizon(pipeline) if value is None else Horizon.from_json(value, keys.horizon_key(pipeline))
    read = Earlier.from_dict(known.read)
    spans: defaultdict[tuple[tuple[str, ...], int | None], list[tuple[str, str]]] = defaultdict(list)
    for topics, partition, start, end in known.intervals:
        spans[topics, partition].append((start, end))
    for key, text in going.items():
        record = RunRecord.from_json(text, key)
        read.add(record)
        work = WorkDefinition.recorded(record)
        if work is not None and work.interval is not None:
            spans[work.topics, work.partition].append(work.interval)
    return Horizon(
        pipeline,
        max(known.before, before),
        known.runs + runs,
        read.to_dict(),
        tuple(
            (*of, *span)
            for of, its in sorted(spans.items(), key=lambda one: (one[0][0], one[0][1] or 0))
            for span in _joined(its)
        ),
    )


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def _joined(spans: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join spans of time that touch; texts of one form sort as the moments do."""
    found: list[tuple[str, str]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _batches(runs: Sequence[OldRun]) -> Iterable[Sequence[OldRun]]:
    batch: list[OldRun] = []
    records = 0
    for one in runs:
        batch.append(one)
        records += len(one.run_keys)
        if records >= BATCH_RECORDS:
            yield batch
            batch, records = [], 0
    if batch:
        yield batch
