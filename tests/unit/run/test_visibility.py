"""What a coordinator's answer says about the end of a transaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.model.kafka import ProducerIdentity, TransactionDescription, TransactionState
from airflow_eos.run.visibility import Visibility

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
