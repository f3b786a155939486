"""Runs a cursor in rounds until it has caught up; each round runs the whole protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_eos.exceptions import RunFenced
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.spec import RunSpec
from airflow_eos.run import laws, rounds
from airflow_eos.run.collaborators import Collaborators

log = logging.getLogger(__name__)

Attempt = Callable[[RunSpec, Collaborators], tuple[RunRecord, ProducerIdentity | None]]


def run_rounds(spec: RunSpec, collaborators: Collaborators, attempt: Attempt) -> RunRecord:
    """Run rounds until the final one is committed; return one record for all of them.

    Before each round after the first, this process checks that it was not fenced since its last round, by
    EndTxn with that round's producer id and epoch (law 2): a slow attempt that was replaced between two
    rounds must not fence its successor.

    :param attempt: runs one round and returns its identity, None if it did not fence.
    :raises RunFenced: a newer attempt owns the cursor; a retry continues after the committed rounds.
    """
    committed = _committed(spec, collaborators)
    if committed:
        log.info("Continuing after %d committed round(s)", len(committed))
    owner: ProducerIdentity | None = None
    while True:
        if owner is not None:
            _prove_owner(owner, collaborators)
        number = len(committed)
        record, producer = attempt(replace(spec, round=number), collaborators)
        owner = producer or owner
        if record.run_key == keys.round_key(spec, number):
            committed.append(record)
        elif record.found or record.mode == "reprocess":
            return record  # the whole run
        else:
            return rounds.merged([*committed, record])


def _committed(spec: RunSpec, collaborators: Collaborators) -> list[RunRecord]:
    """Return the rounds that are already committed; a shortcut, since each round reads the ledger again."""
    final = keys.run_record_key(keys.final_key(spec))
    prefix = keys.run_record_key(keys.rounds_prefix(spec))
    committed = collaborators.authority.peek([final], routing=spec.pipeline, prefixes=[prefix])
    records = [RunRecord.from_json(value, key) for key, value in committed.items()]
    return rounds.in_order(spec, {record.run_key: record for record in records})[0]


def _prove_owner(owner: ProducerIdentity, collaborators: Collaborators) -> None:
    answer = collaborators.transactions.abort(owner)
    if not laws.may_take_epoch(answer):
        raise RunFenced(
            f"transactional id {owner.transactional_id} was taken by a newer attempt between two rounds; a "
            "retry continues after the rounds that are committed"
        )
