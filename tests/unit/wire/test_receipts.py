"""Receipts are sent between processes and stored in the ledger."""

from __future__ import annotations

import json
import pickle

from airflow_eos.model.output import PartitionReceipt

RECEIPT = PartitionReceipt("out", 3, 100, 129, 30, 4096, 2, 29)


def test_a_receipt_survives_json():
    """The JSON form has every field."""
    assert PartitionReceipt.from_dict(json.loads(json.dumps(RECEIPT.to_dict()))) == RECEIPT


def test_a_receipt_of_a_newer_version_can_be_read():
    """Unknown keys are ignored."""
    assert PartitionReceipt.from_dict({**RECEIPT.to_dict(), "new": 1}) == RECEIPT


def test_a_receipt_survives_pickle():
    """Executors send receipts to the driver."""
    assert pickle.loads(pickle.dumps(RECEIPT)) == RECEIPT
