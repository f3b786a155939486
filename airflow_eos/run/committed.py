"""Tells whether a run is committed, and what that means for the attempt that asks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_eos.exceptions import RunAlreadyCommitted
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.record import RunRecord
from airflow_eos.model.spec import RunSpec
from airflow_eos.run import identity
from airflow_eos.run.authority import Authority

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reprocess:
    """A committed run to be done again: the same ranges, under a key and a transactional id of their own."""

    key: str
    ranges: tuple[OffsetRange, ...]
    transactional_id: str


class CommittedRuns:
    """Looks a run up and applies ``on_committed``.

    Found with the same (run id, clear number): this very work is done, whatever ``on_committed`` says. Found
    with another: ``on_committed`` decides.
    """

    def __init__(self, spec: RunSpec, authority: Authority) -> None:
        self._spec = spec
        self._authority = authority

    def ask(self, *, fenced: bool) -> RunRecord | Reprocess | None:
        """Return the record to answer with, what to do again, or None: not committed.

        :param fenced: whether the caller holds the fence; only then may it believe a None (law 3).
        :raises RunAlreadyCommitted: when another run committed it and ``on_committed`` is ``fail``.
        """
        key = identity.run_key(self._spec)
        first = self._look_up([key], fenced=fenced).get(key)
        if first is None:
            return None
        ours = (self._spec.run_id, self._spec.clear_number)
        if (first.run_id, first.clear_number) == ours:
            return _answer(first, "this very work")
        again = self._look_up(identity.reprocess_keys(key), fenced=fenced)
        for record in again.values():
            if (record.run_id, record.clear_number) == ours:
                return _answer(record, "this very work")
        other = f"run {first.run_id!r}, clear {first.clear_number}, try {first.try_number}"
        if self._spec.on_committed == "fail":
            raise RunAlreadyCommitted(
                f"{first.run_key} was committed by {other} at {first.staged_at}; on_committed is 'fail'. Use "
                "'skip' to accept it or 'reprocess' to write it again"
            )
        if self._spec.on_committed == "skip":
            return _answer(first, other)
        return Reprocess(
            identity.reprocess_key(key, len(again) + 1),
            first.ranges,
            identity.reprocess_transactional_id(self._spec, first.ranges),
        )

    def _look_up(self, keys: Sequence[str], *, fenced: bool) -> dict[str, RunRecord]:
        ask = self._authority.decide if fenced else self._authority.peek
        found = ask([identity.run_record_key(key) for key in keys], routing=self._spec.pipeline)
        records = [RunRecord.from_json(value) for value in found.values()]
        return {record.run_key: record for record in records}


def _answer(record: RunRecord, by: str) -> RunRecord:
    log.info(
        "already committed by %s: %s, %d records read, %d written, staged %s; nothing to do",
        by,
        record.run_key,
        record.records_read,
        record.records_written,
        record.staged_at,
    )
    return replace(record, found=True)
