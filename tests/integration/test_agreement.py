"""The oracle's other checks, against a broker: offsets, ledger, transactions and a reader that watched."""

from __future__ import annotations

import time

from airflow_eos.ledger.keys import transactional_id
from airflow_eos.run.states import State
from airflow_eos_testing import read_topic
from airflow_eos_testing.agreement import (
    WatchingReader,
    ledger_complaints,
    ledger_records,
    offsets_complaints,
    unfinished_transactions,
)
from airflow_eos_testing.oracle import InputLog, judge
from tests.support.local_runs import Paused, Pipeline


def test_what_a_cursor_pipeline_leaves_agrees_and_what_does_not_is_told(embedded_kafka):
    """Two runs agree in everything; more input, an open transaction and a lost record are reported."""
    pipeline = Pipeline(embedded_kafka)
    kafka, spec = pipeline.spec.kafka, pipeline.spec
    log = InputLog(2)
    with WatchingReader(kafka, pipeline.sink) as reader:
        for run in ("r1", "r2"):
            log.publish(kafka, pipeline.source, 50, padding=10)
            pipeline.run(run)
        deadline = time.monotonic() + 30
        while len(reader) < 100:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    outputs = read_topic(kafka, pipeline.sink)
    records = ledger_records(kafka, pipeline.ledger, spec.pipeline)
    assert [record.run_id for record in records] == ["r1", "r2"]
    assert list(ledger_complaints(records, 100)) == []
    assert list(offsets_complaints(kafka, spec.group_id, records, pipeline.source)) == []
    name = transactional_id(spec)
    assert list(unfinished_transactions(kafka, name)) == []
    assert list(reader.complaints(outputs)) == []
    assert judge(log, outputs).exact

    log.publish(kafka, pipeline.source, 2)
    assert judge(log, outputs).lost == ("0:50", "1:50")
    (first, second) = offsets_complaints(kafka, spec.group_id, records, pipeline.source)
    assert "the log ends at" in first
    assert "the log ends at" in second
    (behind, _) = offsets_complaints(kafka, spec.group_id, records[:1], pipeline.source, drained=False)
    assert "its last run ended at" in behind
    attempt = Paused(pipeline, State.WRITTEN, "r3")
    assert list(unfinished_transactions(kafka, name, timeout=0)) == [f"transaction {name} is Ongoing"]
    attempt.resume()
