"""How a hanging transaction is decided if a newer version wrote its record."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.model.kafka import ActiveProducer
from airflow_eos.model.ledger import LedgerEntry, LedgerValue, LedgerView
from airflow_eos.operations.repair import _decision, _Runs

NEWER = LedgerValue(json.dumps({"v": 99, "producer": {"producer_id": 7, "producer_epoch": 1}}), 0, 5)


def decision(view: LedgerView, epoch: int = 1) -> tuple[str, str]:
    control: Any = SimpleNamespace(ledger=SimpleNamespace(view=lambda *_: view))
    runs = _Runs.of(control, 1)
    return _decision(control, runs, ActiveProducer(7, epoch, last_sequence=-1), None)


def test_a_commit_whose_record_cannot_be_read_is_a_commit() -> None:
    """Its producer is named nevertheless: an abort would undo what the ledger has."""
    assert decision(LedgerView(9, 9, {"run:x": NEWER}))[0] == "commit"


def test_an_open_record_that_cannot_be_read_decides_nothing() -> None:
    """Neither commit nor abort: a reader of the newer version has to decide."""
    open_there = (LedgerEntry(5, 7, "record", "run:x", NEWER),)
    assert decision(LedgerView(5, 9, {}, open_there)) == (
        "unknown",
        "its run record hangs with it and cannot be read: upgrade airflow-eos",
    )


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (LedgerView(9, 9, {}, log_start=4), "ledger partition 0 has lost its first records"),
        (LedgerView(9, 9, {}, no_evidence={"run:x": 3}), "'run:x' at offset 3, which is not signed"),
    ],
)
def test_a_ledger_that_may_have_lost_a_record_decides_no_abort(view: LedgerView, why: str) -> None:
    """A lost or untrusted record may be the run's: somebody has to check the output."""
    outcome, because = decision(view)
    assert outcome == "unknown"
    assert why in because


@pytest.mark.parametrize("view", [LedgerView(9, 9, {}), LedgerView(9, 9, {"run:x": NEWER})])
def test_without_a_record_of_its_epoch_it_was_aborted(view: LedgerView) -> None:
    """Counter-test."""
    assert decision(view, epoch=2) == ("abort", "the ledger has no run of it")
