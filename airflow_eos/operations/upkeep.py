"""Maintains a ledger by commands: dismiss a record, sign, index, prune."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.engine.index_keeper import Indexed, rebuilt
from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.ledger.topic_check import is_signed, refuse_unsigned
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import TopicPartition, utc_now
from airflow_eos.model.spec import Deployment
from airflow_eos.model.versioned import JsonForm, has_version
from airflow_eos.operations.pruner import Pruner
from airflow_eos.ports import Ledger


@dataclass(frozen=True, slots=True)
class DismissedRecord(JsonForm):
    """A ledger record that no run wrote, and whether a tombstone was written over it."""

    key: str
    partition: int
    offset: int
    done: bool


@dataclass(frozen=True, slots=True)
class PrunedLedger(JsonForm):
    """Number of ``runs``, and of their ``records``, that were or would be removed, by pipeline.

    :param before: moment (ISO, UTC) before which the runs committed.
    """

    before: str
    pipelines: Mapping[str, Mapping[str, int]]
    done: bool


def dismiss_record(
    deployment: Deployment, key: str, *, routing: str, execute: bool = True
) -> DismissedRecord:
    """Write a tombstone over a foreign or unreadable ledger record, unless a run's own record is there.

    The key is then unused, so a run with that key runs (again). A run may be active under the key, with a
    transactional id that cannot be derived from it. Therefore the tombstone is staged first and the key is
    checked afterwards: the check sees any record before the tombstone, and a later record replaces it.

    :param key: key in the ledger, such as ``run:<run key>``.
    :param routing: the pipeline of a run, the group of a cursor.
    :param execute: False for a dry run.
    :raises ConfigurationError: there is no such record, or a run's own record is there and counts; or the
        ledger is signed and the settings have no key.
    :raises OutcomeUnknown: an active run has written a record of the key.
    :raises NotYetVisible: the tombstone is committed, but its marker is missing.
    """
    with ControlPlane(deployment) as control, control.refusing_lost_ledger():
        tp = control.authority.place(routing)
        # The ledger is not verified, because its identity may be the record to dismiss.
        refuse_unsigned(is_signed(control.authority, deployment.ledger), deployment.ledger)
        offset = _dismissible(control.ledger, tp, key)
        if execute:
            write_tombstone(control.ledger, control.writer, deployment.prefix, tp, key)
    return DismissedRecord(key, tp.partition, offset, execute)


def is_dismissible(deployment: Deployment, key: str, *, routing: str) -> bool:
    """Return whether :func:`dismiss_record` makes a key unused: no run wrote its last record."""
    with ControlPlane(deployment) as control, control.refusing_lost_ledger():
        try:
            _dismissible(control.ledger, control.authority.place(routing), key)
        except (ConfigurationError, OutcomeUnknown):
            return False
    return True


def write_tombstone(ledger: Ledger, writer: LedgerWriter, prefix: str, tp: TopicPartition, key: str) -> None:
    """Write a tombstone over a record that may be dismissed; see :func:`dismiss_record`."""
    writer.write(
        keys.ledger_transactional_id(prefix, ledger.topic),
        tp,
        [LedgerMessage(key, None, "", tp.partition)],
        lambda own: _dismissible(ledger, tp, key, own),
    )


def _dismissible(ledger: Ledger, tp: TopicPartition, key: str, own: ProducerIdentity | None = None) -> int:
    """Return the offset of the record that no run wrote; ignores open records of the writer ``own``."""
    view = ledger.view(tp.partition, [key])
    answer = answer_of(view)
    at_work = [entry for entry in answer.open_records if own is None or entry.producer_id != own.producer_id]
    if at_work:
        raise OutcomeUnknown(
            f"a run of {key!r} is at work: its record stands at offset {at_work[0].offset} of {tp}, in a "
            "transaction that is open; wait for its end. `airflow eos doctor` names it, and `airflow eos "
            "abort` or `airflow eos repair` ends it"
        )
    offset, value = view.no_evidence.get(key), answer.committed.get(key)
    if value is not None and not has_version(value.text):
        # Not a value of this package, although written in a transaction; it may have replaced a run's record.
        offset, value = value.offset, None
    if offset is None or value is not None:
        raise ConfigurationError(
            f"{tp} holds no record of {key!r} that could be dismissed: "
            + ("no other program wrote one" if offset is None else "a run wrote it, and it counts")
        )
    return offset


def sign_ledger(deployment: Deployment, *, execute: bool = True) -> SignedFrom:
    """Accept the existing records of a ledger without a signature, and require signatures from now on.

    Returns the record of that boundary, written or, in a dry run, as it would be written.

    :param execute: False for a dry run.
    :raises ConfigurationError: the settings have no key.
    :raises LedgerMissing: there is no ledger.
    :raises OutcomeUnknown: runs kept writing to the ledger, so that the boundary between unsigned and signed
        records is not certain.
    :raises NotYetVisible: the record is committed, but its marker is missing.
    """
    with ControlPlane(deployment) as control, control.refusing_lost_ledger():
        if not control.ledger.key:
            raise ConfigurationError(
                "there is no key to sign with: set [eos] ledger_key, or without Airflow --ledger-key-file"
            )
        # The ledger is not verified, because its identity may lack the signature.
        partitions = control.ledger.describe().topic_partitions
        name = keys.ledger_transactional_id(deployment.prefix, deployment.ledger.topic)
        for attempt in range(1, _SIGN_ATTEMPTS + 1):
            ends = control.cluster.log_ends(partitions)
            signed = SignedFrom({tp.partition: end for tp, end in sorted(ends.items())})
            if not execute:
                break
            message = LedgerMessage(keys.SIGNED_KEY, signed.to_json(), keys.LEDGER_IDENTITY_ROUTING)
            place = control.authority.place(message.routing)
            try:
                control.writer.write(name, place, [message], partial(_nothing_else, control, ends, place))
                break
            except OutcomeUnknown:
                if attempt == _SIGN_ATTEMPTS:
                    raise
                time.sleep(_SIGN_PAUSE_SECONDS)
    return signed


_SIGN_ATTEMPTS = 5
_SIGN_PAUSE_SECONDS = 1.0


def _nothing_else(
    control: ControlPlane, ends: Mapping[TopicPartition, int], place: TopicPartition, own: ProducerIdentity
) -> None:
    """Raise OutcomeUnknown if producers other than ``own`` write to the ledger, or did after ``ends``."""
    busy = {
        tp
        for tp, producers in control.cluster.describe_producers(sorted(ends)).items()
        if any(producer.is_open and producer.producer_id != own.producer_id for producer in producers)
    }
    now = control.cluster.log_ends(sorted(ends))
    busy |= {tp for tp, end in ends.items() if now[tp] > (end + 1 if tp == place else end)}
    if busy:
        raise OutcomeUnknown(
            f"{', '.join(map(str, sorted(busy)))}: a run has an open transaction there, or wrote just now; "
            "sign when no run is at work. A transaction that nobody ends is named by `airflow eos doctor`"
        )


def index_ledger(deployment: Deployment) -> dict[int, Indexed]:
    """Index all decided records of each ledger partition, without a limit on reading; return the results.

    :raises LedgerMissing: there is no ledger.
    :raises OutcomeUnknown: other processes kept writing the index of a partition.
    """
    with ControlPlane(deployment) as control:
        ledger_id = control.verify_ledger(to_write=True)
        keeper = control.index_keeper(ledger_id.prefix)
        return {partition: rebuilt(keeper, partition) for partition in range(ledger_id.partitions)}


MIN_AGE = dt.timedelta(days=1)
"""Younger records are not pruned: a retry, for example after a lost response, may still need them."""


def prune_ledger(
    deployment: Deployment, before: dt.datetime, *, pipeline: str | None = None, execute: bool = True
) -> PrunedLedger:
    """Remove the records of runs that committed before a moment; reads the whole ledger.

    See :class:`~airflow_eos.operations.pruner.Pruner`.

    :param before: aware datetime.
    :param pipeline: only runs of this pipeline.
    :param execute: False for a dry run.
    :raises ConfigurationError: the moment is less than a day ago, or the ledger is signed and the settings
        have no key.
    :raises LedgerMissing: there is no ledger.
    :raises RunFenced: another process is pruning the same partition.
    """
    if before > utc_now() - MIN_AGE:
        raise ConfigurationError(
            f"{keys.utc_text(before)} is less than a day ago: records that a retry may still need are kept"
        )
    moment = keys.utc_text(before)
    pipelines: dict[str, dict[str, int]] = {}
    with ControlPlane(deployment) as control:
        ledger_id = control.verify_ledger(to_write=execute)
        pruner = Pruner(
            control.cluster, control.ledger, control.writer, control.authority, ledger_id.prefix, MIN_AGE
        )
        partitions = [*range(ledger_id.partitions)]
        if pipeline is not None:
            partitions = [control.ledger.partition_for(pipeline)]
        for partition in partitions:
            runs = pruner.old_runs(partition, moment, pipeline)
            if execute:
                runs = pruner.prune(partition, moment, runs)
            for run in runs:
                counts = pipelines.setdefault(run.pipeline, {"runs": 0, "records": 0})
                counts["runs"] += 1
                counts["records"] += len(run.run_keys)
    return PrunedLedger(moment, dict(sorted(pipelines.items())), execute)
