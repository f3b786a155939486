"""Each part of laws 4, 10 and 12 by itself: in a run, one of them would hide that another is gone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import ProtocolViolation, TimeoutsInconsistent
from airflow_eos.model.kafka import (
    ActiveProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionState,
)
from airflow_eos.model.output import PartitionReceipt, SealedManifest, SealedTarget
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run import laws

OURS = ProducerIdentity("id", 7, 3)
OUT, BESIDE, LEDGER = TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("ledger", 0)
MANIFEST = SealedManifest((SealedTarget("out", 0, records=5, batches=2, size=100),))
RECEIPT = PartitionReceipt("out", 0, 10, 14, records=5, size=100, batches=2, last_sequence=4)
EXPECTED = frozenset({OUT, LEDGER})
TRANSACTION = TransactionDescription(TransactionState.ONGOING, 7, 3, EXPECTED)
LEADERS = {OUT: [ActiveProducer(7, 3, 4, 10)], BESIDE: [], LEDGER: [ActiveProducer(7, 3, 1, 50)]}


@pytest.mark.parametrize("changes", [{"records": 4}, {"batches": 1}, {"last_sequence": 3}, {"partition": 1}])
def test_receipts_equal_the_manifest_in_each_number(changes: dict[str, int]) -> None:
    laws.receipts_match(MANIFEST, [RECEIPT])
    with pytest.raises(ProtocolViolation, match="do not equal the manifest"):
        laws.receipts_match(MANIFEST, [replace(RECEIPT, **changes)])


def prove(transaction: TransactionDescription | None, leaders: Mapping[TopicPartition, Any]) -> None:
    laws.proof_holds(OURS, MANIFEST, {LEDGER: 2}, EXPECTED, transaction, leaders)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": TransactionState.PREPARE_ABORT},
        {"producer_id": 8},
        {"producer_epoch": 4},
        {"partitions": EXPECTED - {LEDGER}},
        {"partitions": EXPECTED | {BESIDE}},
    ],
)
def test_the_coordinator_names_this_very_transaction(changes: dict[str, Any]) -> None:
    prove(TRANSACTION, LEADERS)
    with pytest.raises(ProtocolViolation, match="the coordinator says"):
        prove(replace(TRANSACTION, **changes), LEADERS)


@pytest.mark.parametrize(
    "changes",
    [
        {OUT: [ActiveProducer(7, 3, 3, 10)]},
        {OUT: [ActiveProducer(7, 2, 4, 10)]},
        {OUT: []},
        {LEDGER: [ActiveProducer(7, 3, 2, 50)]},
        {BESIDE: [ActiveProducer(7, 3, 0, 20)]},  # no receipt names it
    ],
)
def test_each_leader_ends_where_the_receipts_do(changes: dict[TopicPartition, Any]) -> None:
    with pytest.raises(ProtocolViolation, match="its leader says"):
        prove(TRANSACTION, {**LEADERS, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {OUT: [ActiveProducer(7, 3, 4, 9)]},
        {OUT: [ActiveProducer(7, 3, 4)]},
        {BESIDE: [ActiveProducer(7, 2, 0, 20)]},
    ],
)
def test_our_transaction_begins_with_the_receipts(changes: dict[TopicPartition, Any]) -> None:
    laws.begins_with_receipts(OURS, [RECEIPT], [LEDGER], LEADERS)
    with pytest.raises(ProtocolViolation, match="an earlier one was not ended there"):
        laws.begins_with_receipts(OURS, [RECEIPT], [LEDGER], {**LEADERS, **changes})


@pytest.mark.parametrize(("transaction", "maximum"), [(30, None), (31, 30_999)])
def test_time_outs_fit_up_to_their_bounds(transaction: int, maximum: int | None) -> None:
    """Each error alone tells that brokers which allow 30 s allow no run."""
    laws.timeouts_fit(dt.timedelta(0), dt.timedelta(seconds=31), 31_000)
    with pytest.raises(TimeoutsInconsistent, match=r"delivery_timeout.* \+ 30 s"):
        laws.timeouts_fit(dt.timedelta(0), dt.timedelta(seconds=transaction), maximum)
