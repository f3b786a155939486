"""Transactions that are open: listed with their age, and ended by hand."""

from __future__ import annotations

import datetime as dt
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane, utc_now
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import ProducerIdentity, TransactionState
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment
from airflow_eos.wire.txn_requests import TransactionStatus

_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)
_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.1


def abort_transaction(
    kafka: Mapping[str, Any],
    transactional_id: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    epoch: int | None = None,
    foreign: bool = False,
    execute: bool = True,
) -> dict[str, Any]:
    """End an open transaction by EndTxn(abort) under the very identity the coordinator names.

    Nothing is initialised: no epoch is taken. A live owner learns of it by an error at its next request, and
    its run starts over or is retried.

    :param prefix: ids of this one are ours.
    :param epoch: the producer epoch that a look before has shown: what began since is left alone.
    :param foreign: end it although it is not of the prefix.
    :param execute: False only says what is there, also of foreign ids.
    :returns: among others ``started`` (ISO, by the coordinator's clock), ``age_seconds`` (by this machine's)
        and ``timeout_seconds``.
    :raises ConfigurationError: the coordinator does not know the id; it is foreign; the epoch is another one.
    """
    with ControlPlane(Deployment(kafka)) as control:
        found = control.cluster.describe_transaction(transactional_id)
        if found is None:
            raise ConfigurationError(
                f"the coordinator does not know the transactional id {transactional_id!r}; "
                f"a cursor's is {keys.ID_FORMS['cursor']}; a run's is in its record, and its log has it "
                "at 'Only writer of transaction'"
            )
        ours = keys.is_id_of(transactional_id, prefix)
        is_open = found.state is TransactionState.ONGOING
        # A transaction that is already being ended completes by itself, the way the coordinator has decided.
        answer = "dry run" if is_open else "ending" if found.state in _OPEN else "nothing open"
        if is_open and execute:
            _check_abort(transactional_id, prefix, found.producer_epoch, epoch, allowed=ours or foreign)
            owner = ProducerIdentity(transactional_id, found.producer_id, found.producer_epoch)
            answer = control.transactions.abort(owner).value
            _settle(control, transactional_id)
        after = control.cluster.describe_transaction(transactional_id)
    return {
        "transactional_id": transactional_id,
        "foreign": not ours,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        **times_of(found, utc_now()),
        "state_before": found.state.value,
        "state": after.state.value if after else None,
        "partitions": sorted(str(one) for one in found.partitions),
        "answer": answer,
        "done": is_open and execute,
    }


def oldest_open_transaction(
    kafka: Mapping[str, Any], transactional_ids: Sequence[str]
) -> dict[str, Any] | None:
    """Return the one of these transactions that is open for the longest time, None when none is.

    As ``{"transactional_id", "started", "age_seconds", "timeout_seconds", "command"}``, see
    :func:`abort_transaction` and :func:`abort_command`.
    """
    with ControlPlane(Deployment(kafka)) as control:
        found = _open_ones(control, transactional_ids)
    return next(iter(found), None)


def open_transactions(kafka: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the open transactions of a prefix, the oldest first; as :func:`oldest_open_transaction`.

    Those that this principal may not Describe are left out.
    """
    with ControlPlane(Deployment(kafka)) as control:
        ids = control.cluster.open_transactional_ids()
        return _open_ones(control, sorted(one for one in ids if keys.is_id_of(one, prefix)))


def _open_ones(control: ControlPlane, transactional_ids: Sequence[str]) -> list[dict[str, Any]]:
    described = {name: control.cluster.describe_transaction(name) for name in transactional_ids}
    found = [
        {
            "transactional_id": name,
            **times_of(one, utc_now()),
            "command": abort_command(name, one.producer_epoch),
        }
        for name, one in described.items()
        if one is not None and one.state in _OPEN
    ]
    return sorted(found, key=lambda one: -float(one["age_seconds"]))


def abort_command(transactional_id: str, epoch: int) -> str:
    """Return the command that ends an open transaction before its time-out does."""
    return f"airflow eos abort --transactional-id {shlex.quote(transactional_id)} --epoch {epoch} --yes"


def _check_abort(name: str, prefix: str, epoch: int, expected: int | None, *, allowed: bool) -> None:
    """Refuse to end what nobody has looked at, or what is somebody else's."""
    if not allowed:
        raise ConfigurationError(
            f"{name!r} is not of the prefix {prefix!r}: another environment or application owns the "
            "transaction, and may be at work; --foreign ends it all the same"
        )
    if expected != epoch:
        raise ConfigurationError(
            f"the open transaction of {name!r} has producer epoch {epoch}, {expected} was given: look again "
            "without --yes, then give the epoch that is shown"
        )


def times_of(found: TransactionStatus, now: dt.datetime) -> dict[str, Any]:
    """Return when an open transaction began, how long ago, and when it is ended by itself.

    As ``{"started", "age_seconds", "timeout_seconds"}``: ISO, seconds, seconds; the first two are None where
    nothing is open.
    """
    times: dict[str, Any] = {"started": None, "age_seconds": None, "timeout_seconds": found.timeout_ms / 1000}
    if found.state in _OPEN and found.start_ms >= 0:  # of one that is over the coordinator keeps the start
        started = dt.datetime.fromtimestamp(found.start_ms / 1000, dt.timezone.utc)
        age = max(0.0, (now - started).total_seconds())
        times |= {"started": keys.utc_text(started), "age_seconds": round(age, 1)}
    return times


def _settle(control: ControlPlane, transactional_id: str) -> None:
    """Wait until markers are written everywhere; a time-out is no failure."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        found = control.cluster.describe_transaction(transactional_id)
        if found is None or found.state not in _OPEN:
            return
        time.sleep(_POLL_SECONDS)
