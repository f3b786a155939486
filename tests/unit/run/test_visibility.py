"""What a coordinator's answer says about the end of a transaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.exceptions import AuthorizationFailed, NotYetVisible
from airflow_eos.model.kafka import (
    ActiveProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.visibility import Visibility
from tests.support.run_records import run_record

OURS = ProducerIdentity("id", 7, 3)
COMMITTED, OPEN, EMPTY = TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING, TransactionState.EMPTY


def is_over(answer: TransactionDescription | None) -> bool:
    cluster: Any = SimpleNamespace(describe_transaction=lambda name: answer)
    transactions: Any = None  # no marker is written here
    return Visibility(cluster, transactions)._is_over(OURS)


@pytest.mark.parametrize("state", list(TransactionState))
def test_an_earlier_epoch_says_nothing(state: TransactionState) -> None:
    """A stale coordinator describes the one before: markers of ours may still be in flight."""
    assert not is_over(TransactionDescription(state, 7, 2))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        TransactionDescription(EMPTY, 7, 4),
        TransactionDescription(OPEN, 7, 5),
        TransactionDescription(EMPTY, 8, 0),
        TransactionDescription(COMMITTED, 7, 3),
    ],
)
def test_a_later_epoch_is_given_after_the_end_only(answer: TransactionDescription | None) -> None:
    """The same for another producer id, or none."""
    assert is_over(answer)


@pytest.mark.parametrize("state", [OPEN, TransactionState.PREPARE_COMMIT])
def test_our_own_epoch_is_over_when_it_is_complete(state: TransactionState) -> None:
    """Until then the coordinator is writing markers."""
    assert not is_over(TransactionDescription(state, 7, 3))


@pytest.mark.parametrize("has_marker", [True, False])
def test_a_refused_marker_is_no_failure_where_the_next_leader_has_it(has_marker: bool) -> None:
    """A broker that no longer leads shows the transaction as open; its successor refuses an older marker."""
    partition, leaders = TopicPartition("ledger", 0), ["replaced", "new"]

    def describe_producers(partitions: Any) -> Any:
        is_open = leaders[0] == "replaced" or not has_marker
        return {partition: [ActiveProducer(7, 3, 0, current_txn_start_offset=0 if is_open else -1)]}

    def write_markers(*_: Any, commit: bool) -> None:
        leaders[:] = ["new"]
        raise AuthorizationFailed("TRANSACTION_COORDINATOR_FENCED")

    cluster: Any = SimpleNamespace(
        describe_producers=describe_producers,
        describe_transaction=lambda name: TransactionDescription(COMMITTED, 7, 3),
    )
    transactions: Any = SimpleNamespace(write_markers=write_markers)
    visibility = Visibility(cluster, transactions, sleep=lambda _: None)
    if has_marker:
        visibility.wait(run_record(producer=OURS), [partition], seconds=5)
    else:
        with pytest.raises(NotYetVisible, match="may not write them"):
            visibility.wait(run_record(producer=OURS), [partition], seconds=5)
    assert leaders == ["new"]
