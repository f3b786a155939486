"""Unknown counts stay visible in sums."""

from __future__ import annotations

import json
import logging
from unittest import mock

import pytest

from airflow_eos.cli.commands import record_row
from airflow_eos.cli.status import run_row
from airflow_eos.engine.run import Run
from airflow_eos.model.output import NOT_COUNTED, total
from airflow_eos.model.spec import RunSpec
from airflow_eos.operations.queries import LedgerRecord
from airflow_eos.run.rounds import merged
from tests.unit.airflow.fakes import a_record


def test_a_sum_with_an_unknown_count_is_unknown():
    """It is not just the sum of the others."""
    assert total([]) == 0
    assert total([3, 4]) == 7
    assert total([3, NOT_COUNTED, 4]) == NOT_COUNTED


def test_records_and_merged_rounds_say_so():
    """A run that Spark read in part only."""
    counted = a_record(records_read_by_partition={"src-0": 10, "src-1": 5})
    unknown = a_record(records_read_by_partition={"src-0": NOT_COUNTED, "src-1": 5})
    assert (counted.records_read, unknown.records_read) == (15, NOT_COUNTED)
    rounds = merged([counted, unknown])
    assert rounds.records_read_by_partition == {"src-0": NOT_COUNTED, "src-1": 10}
    assert rounds.records_read == NOT_COUNTED


def test_late_records_are_named_wherever_a_run_is_shown():
    """In the task's log, in its XCom, and by ``airflow eos status`` and ``ledger``."""
    late = a_record(mode="interval", records_late=3)
    assert late.counts == "10 read (3 of them late), 10 written"
    assert late.summary()["records_late"] == 3
    assert run_row(late.summary())["records_late"] == 3
    row = record_row(LedgerRecord(f"run:{late.run_key}", 0, 0, json.loads(late.to_json())))
    assert row["what"] == f"{late.counts} by {late.run_id}, try 1"
    for none in (0, NOT_COUNTED):
        assert a_record(records_late=none).counts == "10 read, 10 written"


@pytest.mark.parametrize("is_found", [False, True])
def test_the_log_of_a_run_names_late_records(monkeypatch, caplog, is_found):
    """Whether it was committed now or found."""
    monkeypatch.setattr("airflow_eos.engine.run.ControlPlane", mock.MagicMock())
    monkeypatch.setattr(Run, "_attempt", lambda *_: (a_record(records_late=3, found=is_found), None))
    spec = RunSpec(
        kafka={"bootstrap.servers": "none:1"},
        pipeline="p",
        run_id="r",
        source_topics=("src",),
        sink_topic="out",
        group_id="g",
    )
    with caplog.at_level(logging.INFO, logger="airflow_eos"):
        Run(mock.Mock(), spec, lambda df: df).execute()
    assert "records: 10 read (3 of them late), 10 written" in caplog.text
