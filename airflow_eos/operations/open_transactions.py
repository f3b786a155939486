"""Transactions that are open: listed with their age, and ended by hand."""

from __future__ import annotations

import datetime as dt
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class TransactionTimes:
    """When an open transaction began, how long ago, and when it is ended by itself.

    :param started: ISO, by the coordinator's clock; None where nothing is open.
    :param age_seconds: by this machine's clock; None where nothing is open.
    """

    started: str | None
    age_seconds: float | None
    timeout_seconds: float

    @classmethod
    def of(cls, status: TransactionStatus, now: dt.datetime) -> TransactionTimes:
        """Read them from what a coordinator says; of one that is over it keeps the start."""
        started, age = None, None
        if status.state in _OPEN and status.start_ms >= 0:
            moment = dt.datetime.fromtimestamp(status.start_ms / 1000, dt.timezone.utc)
            started = keys.utc_text(moment)
            age = round(max(0.0, (now - moment).total_seconds()), 1)
        return cls(started, age, status.timeout_ms / 1000)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "started": self.started,
            "age_seconds": self.age_seconds,
            "timeout_seconds": self.timeout_seconds,
        }


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open now."""

    transactional_id: str
    producer_epoch: int
    times: TransactionTimes

    @property
    def command(self) -> str:
        """The command that ends it before its time-out does."""
        return abort_command(self.transactional_id, self.producer_epoch)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "transactional_id": self.transactional_id,
            **self.times.to_dict(),
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """What was done to a transaction, or what would be.

    :param owner: the identity under which it is ended.
    :param foreign: it is not of the prefix.
    :param state_before: as the coordinator named it.
    :param state: as it names it now; None: it has forgotten the id.
    :param answer: of the coordinator, or why it was not asked.
    :param done: it was asked to abort.
    """

    owner: ProducerIdentity
    foreign: bool
    times: TransactionTimes
    state_before: str
    state: str | None
    partitions: tuple[str, ...]
    answer: str
    done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "transactional_id": self.owner.transactional_id,
            "foreign": self.foreign,
            "producer_id": self.owner.producer_id,
            "producer_epoch": self.owner.producer_epoch,
            **self.times.to_dict(),
            "state_before": self.state_before,
            "state": self.state,
            "partitions": list(self.partitions),
            "answer": self.answer,
            "done": self.done,
        }


def abort_transaction(
    kafka: Mapping[str, Any],
    transactional_id: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    epoch: int | None = None,
    foreign: bool = False,
    execute: bool = True,
) -> EndedTransaction:
    """End an open transaction by EndTxn(abort) under the very identity the coordinator names.

    Nothing is initialised: no epoch is taken. A live owner learns of it by an error at its next request, and
    its run starts over or is retried.

    :param prefix: ids of this one are ours.
    :param epoch: the producer epoch that a look before has shown: what began since is left alone.
    :param foreign: end it although it is not of the prefix.
    :param execute: False only says what is there, also of foreign ids.
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
        owner = ProducerIdentity(transactional_id, found.producer_id, found.producer_epoch)
        if is_open and execute:
            _check_abort(transactional_id, prefix, found.producer_epoch, epoch, allowed=ours or foreign)
            answer = control.transactions.abort(owner).value
            _settle(control, transactional_id)
        after = control.cluster.describe_transaction(transactional_id)
    return EndedTransaction(
        owner,
        foreign=not ours,
        times=TransactionTimes.of(found, utc_now()),
        state_before=found.state.value,
        state=after.state.value if after else None,
        partitions=tuple(sorted(map(str, found.partitions))),
        answer=answer,
        done=is_open and execute,
    )


def oldest_open_transaction(
    kafka: Mapping[str, Any], transactional_ids: Sequence[str]
) -> OpenTransaction | None:
    """Return the one of these transactions that is open for the longest time, None when none is."""
    with ControlPlane(Deployment(kafka)) as control:
        found = _open_ones(control, transactional_ids)
    return next(iter(found), None)


def open_transactions(kafka: Mapping[str, Any], prefix: str) -> list[OpenTransaction]:
    """Return the open transactions of a prefix, the oldest first.

    Those that this principal may not Describe are left out.
    """
    with ControlPlane(Deployment(kafka)) as control:
        ids = control.cluster.open_transactional_ids()
        return _open_ones(control, sorted(one for one in ids if keys.is_id_of(one, prefix)))


def _open_ones(control: ControlPlane, transactional_ids: Sequence[str]) -> list[OpenTransaction]:
    described = {name: control.cluster.describe_transaction(name) for name in transactional_ids}
    transactions = [
        OpenTransaction(name, status.producer_epoch, TransactionTimes.of(status, utc_now()))
        for name, status in described.items()
        if status is not None and status.state in _OPEN
    ]
    return sorted(transactions, key=lambda transaction: -(transaction.times.age_seconds or 0.0))


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


def _settle(control: ControlPlane, transactional_id: str) -> None:
    """Wait until markers are written everywhere; a time-out is no failure."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        found = control.cluster.describe_transaction(transactional_id)
        if found is None or found.state not in _OPEN:
            return
        time.sleep(_POLL_SECONDS)
