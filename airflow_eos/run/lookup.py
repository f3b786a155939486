"""Looks a run up in the ledger, and decides what its record means for the caller."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_eos.exceptions import LedgerPruned, RunAlreadyCommitted
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import Authority
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import Cursor
from airflow_eos.model.spec import RunSpec
from airflow_eos.run import laws, rounds
from airflow_eos.run.work import AUTHORS, SINK, WorkDefinition, differences, mapped_otherwise

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reprocess:
    """A committed run to be done again: the same ranges, under another key and transactional id.

    :param recorded: the run's record, merged from all of its rounds.
    :param earlier: all records of the run: of its rounds, and of its reprocessings.
    """

    key: str
    recorded: RunRecord
    transactional_id: str
    earlier: tuple[RunRecord, ...]


class CommittedRuns:
    """Looks a run up and applies ``on_committed``.

    A record with the same run id, ``max_tries`` of the task, and clear number or start of the Dag run is of
    this very work, whatever ``on_committed`` is, as is one of a later life of the task, which Airflow has
    lost; for any other, ``on_committed`` decides. A record of other work, such as another environment's, does
    not count (law 7). If the author changed the work on purpose, ``accept`` lets the record stand, and
    ``reprocess`` may write the recorded ranges to another sink.
    """

    def __init__(self, spec: RunSpec, authority: Authority) -> None:
        self._spec = spec
        self._authority = authority
        self._work = WorkDefinition.of(spec)
        self._may_differ = AUTHORS if spec.on_committed == "accept" else frozenset[str]()

    def ask(self, *, fenced: bool, wait: bool = False) -> RunRecord | Reprocess | None:
        """Return the run's record, the run to reprocess, or None: not committed.

        :param fenced: whether the caller holds the fence; only then does None prove anything (law 3).
        :param wait: wait for a record whose transaction is being ended, as with the fence.
        :raises RunAlreadyCommitted: another run committed it and ``on_committed`` is ``fail``.
        :raises DifferentWork: other work has the same run key, or the task has become mapped or unmapped.
        """
        wait = fenced or wait
        try:
            # The author may have given up rounds after this Dag run was created.
            was_tried = self._spec.clear_number > 0 or self._spec.try_number > 1
            if keys.loops(self._spec) or (was_tried and isinstance(self._spec.ranges, Cursor)):
                return self._ask_rounds(wait=wait)
            key, others = keys.run_key(self._spec), keys.other_layout_keys(self._spec)
            records = self._look_up([key, *others], wait=wait, whole=(key, *others))
        except LedgerPruned:
            # It may have been pruned while this very work reprocessed it: then that record counts.
            own = self._reprocessing_of_pruned(wait=wait)
            if own is None:
                raise
            return own
        if (first := records.get(key)) is not None:
            return self._settled(first, [first], wait=wait)
        return self._of_other_layout(records[others[0]]) if records else None

    def _of_other_layout(self, record: RunRecord) -> RunRecord:
        """Accept the record of a task that was not mapped then, if asked to: that run read all partitions."""
        mapped = self._spec.source_partition is not None
        if mapped and self._may_differ:
            laws.same_work(record, record.producer.transactional_id, self._work, but_for=AUTHORS)
            return _answer(record, "its task, not mapped yet")
        raise mapped_otherwise(record.run_key, mapped=mapped)

    def _reprocessing_of_pruned(self, *, wait: bool) -> RunRecord | None:
        """Return this very work's record as a reprocessing, even if the run's own record is pruned."""
        names = [keys.run_key(replace(self._spec, ranges=Cursor())), keys.final_key(self._spec)]
        for key in names if keys.loops(self._spec) else [keys.run_key(self._spec)]:
            repeats = self._look_up(keys.reprocess_keys(key), wait=wait)
            record = self._own_reprocessing(repeats, keys.reprocess_transactional_id(self._spec, key))
            if record is not None:
                return record
        return None

    def _own_reprocessing(self, repeats: Mapping[str, RunRecord], again_id: str) -> RunRecord | None:
        """Return the reprocessing that is this very work; it must have the id of the run's reprocessings."""
        for record in repeats.values():
            if self._is_ours(record):
                self._check([record], again_id)
                return _answer(record, "this very work")
        return None

    def _ask_rounds(self, *, wait: bool) -> RunRecord | Reprocess | None:
        """Like :meth:`ask` once the final round is committed; before that, look up the spec's own round.

        Rounds committed before a clear are not reprocessed: the run had not ended, and continues.
        """
        whole = keys.run_key(replace(self._spec, ranges=Cursor()))
        records = self._look_up([whole], wait=wait, whole=(whole,), prefix=keys.rounds_prefix(self._spec))
        parts, final = rounds.in_order(self._spec, records)
        if final is not None:
            return self._settled(rounds.merged([*parts, final]), [*parts, final], wait=wait)
        if whole in records:  # the author asked for rounds after it was committed, or gave them up before
            parts.append(records[whole])
            return self._settled(rounds.merged(parts) if parts[1:] else parts[0], parts, wait=wait)
        self._check(parts)
        number = self._spec.round
        return _answer(parts[number], "a round") if number is not None and number < len(parts) else None

    def _settled(self, first: RunRecord, parts: Sequence[RunRecord], *, wait: bool) -> RunRecord | Reprocess:
        """Apply ``on_committed`` to a committed run; ``parts`` are its rounds, or itself."""
        key = first.run_key
        if self._is_ours(first):
            self._check(parts)
            return _answer(first, "this very work")
        self._check(parts, but_for=AUTHORS)  # same fence, same environment: no on_committed helps otherwise
        again_id = keys.reprocess_transactional_id(self._spec, key)
        repeats = self._look_up(keys.reprocess_keys(key), wait=wait)
        if (own := self._own_reprocessing(repeats, again_id)) is not None:
            return own
        other = f"run {first.run_id!r}, clear {first.clear_number}, try {first.try_number}"
        if self._spec.on_committed == "reprocess":
            self._check(parts, but_for={SINK})
            earlier = (*parts, *repeats.values())
            # The numbers have gaps if the record of an earlier reprocessing was dismissed.
            latest = max((keys.reprocessing_number(repeat) or 0 for repeat in repeats), default=0)
            return Reprocess(keys.reprocess_key(key, latest + 1), first, again_id, earlier)
        answer = self._matching_record(first, parts, repeats)
        if self._spec.on_committed == "fail":
            raise RunAlreadyCommitted(
                f"{answer.run_key} was committed by {other} at {answer.staged_at}; on_committed is 'fail'. "
                "Use 'skip' to accept it or 'reprocess' to write it again"
            )
        return _answer(answer, other)

    def _matching_record(
        self, first: RunRecord, parts: Sequence[RunRecord], repeats: Mapping[str, RunRecord]
    ) -> RunRecord:
        """Return the run, or else its latest reprocessing, that did the requested work."""
        if any(self._differs(part) for part in parts):
            numbered = [repeats[key] for key in keys.reprocess_keys(first.run_key) if key in repeats]
            for record in reversed(numbered):
                if not self._differs(record):
                    return record
        self._check(parts)
        return first

    def _differs(self, record: RunRecord) -> bool:
        recorded = WorkDefinition.recorded(record)
        return recorded is not None and bool(differences(recorded, self._work))

    def _is_ours(self, record: RunRecord) -> bool:
        task, clear_number = self._spec.task, self._spec.clear_number
        recorded, own = record.of_task("max_tries"), task.get("max_tries")
        if record.run_id != self._spec.run_id:
            return False
        if isinstance(recorded, int) and isinstance(own, int) and recorded != own:
            # Clears add tries: with fewer, the Dag run was created again, or the database restored. Lowered
            # retries leave fewer, too, but the number of a clear is at least that of the tries before it.
            return clear_number < min(record.clear_number, record.try_number) and own < recorded
        # Where its task has fewer retries now, a retry has another clear number, but not another start.
        start = record.of_task("dag_run_start")
        has_same_start = start is not None and start == task.get("dag_run_start")
        return has_same_start or record.clear_number == clear_number

    def _check(
        self, records: Sequence[RunRecord], own_id: str | None = None, but_for: Collection[str] = ()
    ) -> None:
        """Refuse records of other work, or of another transactional id (law 7)."""
        own_fence = own_id or keys.transactional_id(self._spec)
        for record in records:
            laws.same_work(record, own_fence, self._work, but_for={*but_for, *self._may_differ})

    def _look_up(
        self, runs: Sequence[str], *, wait: bool, whole: Sequence[str] = (), prefix: str = ""
    ) -> dict[str, RunRecord]:
        """Return records by run key; refuses the runs ``whole`` if they were pruned."""
        ask = self._authority.settle if wait else self._authority.peek
        pipeline = self._spec.pipeline
        wanted = [keys.run_record_key(key) for key in runs]
        values = ask(
            [*wanted, *(keys.pruned_key(pipeline, key) for key in whole)],
            routing=pipeline,
            prefixes=[keys.run_record_key(prefix)] if prefix else [],
        )
        records = [
            RunRecord.from_json(value, key) for key, value in values.items() if keys.is_run_record(key)
        ]
        by_key = {record.run_key: record for record in records}
        answers = {key for key in by_key if keys.ends_run(key)}
        for key in () if answers else whole:
            laws.not_pruned(key, pipeline, values)
        return by_key


def _answer(record: RunRecord, by: str) -> RunRecord:
    log.info(
        "already committed by %s: %s, records: %s, staged %s; nothing to do",
        by,
        record.run_key,
        record.counts,
        record.staged_at,
    )
    return replace(record, found=True)
