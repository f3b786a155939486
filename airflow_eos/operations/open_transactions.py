"""Lists open transactions with their age, and aborts them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.model.command_line import CommandLine
from airflow_eos.model.kafka import ProducerIdentity, TransactionDescription, TransactionState
from airflow_eos.model.ranges import utc_now
from airflow_eos.model.spec import Deployment
from airflow_eos.model.versioned import JsonForm
from airflow_eos.wording import moment_of

OPEN_STATES = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)
_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TransactionTimes(JsonForm):
    """Start, age and timeout of a transaction.

    :param started: ISO, by the coordinator's clock; None if none is open.
    :param age_seconds: by this machine's clock; None if none is open.
    :param timeout_seconds: the coordinator aborts the transaction after this time.
    """

    started: str | None
    age_seconds: float | None
    timeout_seconds: float

    @classmethod
    def of(cls, status: TransactionDescription, now: dt.datetime) -> TransactionTimes:
        """Return the times from a coordinator's description, which has a start time even if none is open."""
        started, age = None, None
        moment = moment_of(status.start_ms)
        if status.state in OPEN_STATES and status.start_ms >= 0 and moment is not None:
            started = keys.utc_text(moment)
            age = round(max(0.0, (now - moment).total_seconds()), 1)
        return cls(started, age, status.timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class OpenTransaction(JsonForm):
    """An open transaction; times as in :class:`TransactionTimes`, the command of :func:`abort_command`."""

    transactional_id: str
    started: str | None
    age_seconds: float | None
    timeout_seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class EndedTransaction(JsonForm):
    """The result of an abort or of its dry run; times as in :class:`TransactionTimes`.

    :param foreign: whether its id does not have the prefix.
    :param state: the coordinator's current state; None if it no longer knows the id.
    :param answer: the coordinator's answer, or why no request was sent.
    :param done: whether the coordinator was asked to abort.
    """

    transactional_id: str
    foreign: bool
    producer_id: int
    producer_epoch: int
    started: str | None
    age_seconds: float | None
    timeout_seconds: float
    state_before: str
    state: str | None
    partitions: Sequence[str]
    answer: str
    done: bool


def abort_transaction(
    deployment: Deployment,
    transactional_id: str,
    *,
    epoch: int | None = None,
    foreign: bool = False,
    execute: bool = True,
) -> EndedTransaction:
    """Abort an open transaction by EndTxn with the producer id and epoch that the coordinator returns.

    It does not send InitProducerId. A live owner gets an error at its next request, and its run starts over
    or is retried.

    :param epoch: the producer epoch that a dry run has shown, so that a newer transaction is not aborted.
    :param foreign: abort it even if the id does not have the prefix.
    :param execute: False for a dry run, which also accepts foreign ids.
    :raises ConfigurationError: the coordinator does not know the id; it is foreign; the epoch differs.
    """
    with ControlPlane(deployment) as control:
        before = control.cluster.describe_transaction(transactional_id)
        if before is None:
            raise ConfigurationError(
                f"the coordinator does not know the transactional id {transactional_id!r}; "
                f"a cursor's is {keys.ID_FORMS['cursor']}; a run's is in its record, and its log has it "
                "at 'Only writer of transaction'"
            )
        owned = keys.is_id_of(transactional_id, deployment.prefix)
        is_open = before.state is TransactionState.ONGOING
        # A transaction that is already ending completes without a request, as the coordinator has decided.
        answer = "dry run" if is_open else "ending" if before.state in OPEN_STATES else "nothing open"
        owner = ProducerIdentity(transactional_id, before.producer_id, before.producer_epoch)
        if is_open and execute:
            if not (owned or foreign):
                raise ConfigurationError(
                    f"{transactional_id!r} is not of the prefix {deployment.prefix!r}: another environment "
                    "or application owns the transaction, and may be at work; --foreign ends it all the same"
                )
            if epoch != before.producer_epoch:
                raise ConfigurationError(
                    f"the open transaction of {transactional_id!r} has producer epoch "
                    f"{before.producer_epoch}, {epoch} was given: look again without --yes, then give the "
                    "epoch that is shown"
                )
            answer = control.transactions.abort(owner).value
            _settle(control, transactional_id)
        after = control.cluster.describe_transaction(transactional_id)
    return EndedTransaction(
        **owner.to_dict(),
        **TransactionTimes.of(before, utc_now()).to_dict(),
        foreign=not owned,
        state_before=before.state.value,
        state=after.state.value if after else None,
        partitions=sorted(map(str, before.partitions)),
        answer=answer,
        done=is_open and execute,
    )


def open_transactions(control: ControlPlane) -> list[OpenTransaction]:
    """Return the open transactions of the prefix that this principal may Describe, the oldest first."""
    ids = control.cluster.open_transactional_ids()
    return open_ones(control, sorted(name for name in ids if keys.is_id_of(name, control.deployment.prefix)))


def open_ones(control: ControlPlane, transactional_ids: Iterable[str]) -> list[OpenTransaction]:
    """Return the open transactions of these ids, the oldest first."""
    transactions = [
        OpenTransaction(
            transactional_id=name,
            **TransactionTimes.of(status, utc_now()).to_dict(),
            command=abort_command(name, status.producer_epoch, control.deployment.command_line),
        )
        for name, status in described_open(control, transactional_ids).items()
    ]
    return sorted(transactions, key=lambda transaction: -(transaction.age_seconds or 0.0))


def described_open(
    control: ControlPlane, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription]:
    """Return the coordinators' descriptions by transactional id; omits ids without an open transaction."""
    described = {name: control.cluster.describe_transaction(name) for name in transactional_ids}
    return {name: it for name, it in described.items() if it is not None and it.state in OPEN_STATES}


def abort_command(transactional_id: str, epoch: int, command_line: CommandLine) -> str:
    """Return the command that shows an open transaction and, with ``--yes``, aborts it before its timeout."""
    return command_line.command("abort", {"--transactional-id": transactional_id, "--epoch": str(epoch)})


def _settle(control: ControlPlane, transactional_id: str) -> None:
    """Wait until all markers are written; does not raise after the time limit."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        if not described_open(control, [transactional_id]):
            return
        time.sleep(_POLL_SECONDS)
