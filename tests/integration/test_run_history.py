"""The runs of a ledger, kept in memory: each refresh reads what is new, by the rules of a look-up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer

from airflow_eos.broker.ledger_log.reader import LedgerReader
from airflow_eos.ledger import keys
from airflow_eos.model.spec import Deployment
from airflow_eos.ui.history import RunHistory
from tests.support.brokers import foreign_transaction
from tests.support.local_runs import Pipeline
from tests.support.patience import wait_until


def refreshed(history, shows):
    """Refresh until it shows something: markers follow the answer to a commit or an abort."""

    def look():
        history.refresh()
        return shows()

    wait_until(look)


TASK = {"dag_id": "d", "task_id": "t", "map_index": -1, "run_id": "r"}


@pytest.fixture
def pipeline(embedded_kafka):
    return Pipeline(embedded_kafka, task=TASK)


@pytest.fixture
def opened(pipeline):
    """Open a history of the pipeline's ledger; it is closed at the end."""
    histories = []

    def open_one(**options):
        spec = options.pop("spec", pipeline.spec)
        histories.append(RunHistory(Deployment(spec.kafka, spec.ledger, spec.prefix), **options))
        return histories[-1]

    yield open_one
    for history in histories:
        history.close()


def placed(pipeline, history):
    """Return the pipeline's ledger partition, with the ledger's topic."""
    return history._control.ledger.partition_for(pipeline.spec.pipeline)


def test_each_look_reads_only_what_is_new(pipeline, opened, monkeypatch):
    """Records name their Dag; a second refresh begins where the first ended."""
    pipeline.publish(["a", "b"])
    first = pipeline.run("r1")
    history = opened()
    history.refresh()
    read = []
    changes = LedgerReader.changes
    monkeypatch.setattr(LedgerReader, "changes", lambda self: (read.append(c) or c for c in changes(self)))
    pipeline.publish(["c"])
    second = pipeline.run("r2")
    history.refresh()
    (kept,) = history.pipelines.values()
    assert list(kept.runs) == [first.run_key, second.run_key]
    assert [record.dag_id for record in kept.runs.values()] == ["d", "d"]
    assert [*kept.runs.values()][-1].details["airflow"] == TASK
    assert [record.key for record in read] == [keys.run_record_key(second.run_key)]
    coverage = history.coverage(kept)
    assert coverage.sentence == f"2 runs tile offsets [0, 3) of {pipeline.source}-0 without gap or overlap"
    assert coverage.unread == 0


def test_a_record_behind_an_open_transaction_comes_when_that_has_ended(pipeline, opened):
    """Only decided records are read; until then the history reports that it lags."""
    pipeline.publish(["a"])
    pipeline.run("r1")
    history = opened()
    history.refresh()
    partition = placed(pipeline, history)
    topic, config = pipeline.spec.ledger.topic, pipeline.spec.kafka
    with foreign_transaction(config, topic, ("other", "x"), partition=partition) as producer:
        pipeline.publish(["b"])
        pipeline.run("r2")
        history.refresh()
        assert [r.run_id for r in history.pipelines[pipeline.spec.pipeline].runs.values()] == ["r1"]
        assert history.reader.behind == {partition}
        producer.abort_transaction(30)
    refreshed(history, lambda: not history.reader.behind)
    assert [r.run_id for r in history.pipelines[pipeline.spec.pipeline].runs.values()] == ["r1", "r2"]


@pytest.mark.parametrize("within", [True, False])
def test_what_no_run_wrote_is_not_believed(pipeline, opened, within):
    """Neither a record outside of a transaction, nor one in another producer's transaction."""
    pipeline.publish(["a"])
    real = pipeline.run("r1")
    history = opened()
    history.refresh()
    forged = replace(real, run_key=keys.cursor_run_key(real.pipeline, "forged"), run_id="forged")
    message = (keys.run_record_key(forged.run_key), forged.to_json())
    partition, topic = placed(pipeline, history), pipeline.spec.ledger.topic
    if within:
        with foreign_transaction(pipeline.spec.kafka, topic, message, partition=partition) as producer:
            producer.commit_transaction(30)
    else:
        plain = Producer(pipeline.spec.kafka)
        plain.produce(topic, key=message[0], value=message[1], partition=partition)
        assert plain.flush(30) == 0
    refreshed(history, lambda: history.reader.ignored)
    assert [record.run_id for record in history.pipelines[real.pipeline].runs.values()] == ["r1"]
    assert list(history.reader.ignored) == [message[0]]


def test_records_without_the_ledgers_signature_are_not_believed(embedded_kafka, opened):
    """A reader with the key accepts only records signed with it."""
    unsigned = Pipeline(embedded_kafka)
    unsigned.publish(["a"])
    unsigned.run("r1")
    key = "0123456789abcdef"
    keyed = replace(unsigned.spec, ledger=replace(unsigned.spec.ledger, key=key))
    plain = opened(spec=unsigned.spec)
    plain.refresh()
    assert len(plain.pipelines) == 1
    signed = Pipeline(embedded_kafka)
    signed.spec = replace(signed.spec, ledger=replace(signed.spec.ledger, key=key))
    signed.publish(["a"])
    signed.run("r1")
    believed = opened(spec=signed.spec)
    believed.refresh()
    assert list(believed.pipelines) == [signed.spec.pipeline]
    reader = LedgerReader(opened(spec=keyed)._control.ledger, believed._control.link, (keys.RUN_RECORDS,))
    reader.look()
    assert list(reader.changes()) == []
    assert len(reader.ignored) == 1


def test_of_more_runs_than_are_kept_the_ranges_stay(pipeline, opened):
    """The sentence covers all runs, and a record that is not kept is looked up."""
    for number in range(4):
        pipeline.publish([str(number)])
        pipeline.run(f"r{number}")
    history = opened(runs_kept=2)
    history.refresh()
    kept = history.pipelines[pipeline.spec.pipeline]
    assert [run.run_id for run in kept.runs.values()] == ["r2", "r3"]
    tiled = f"4 runs tile offsets [0, 4) of {pipeline.source}-0 without"
    assert history.coverage(kept).sentence.startswith(tiled)
    oldest = keys.cursor_run_key(pipeline.spec.pipeline, "r0")
    record = history.record(pipeline.spec.pipeline, oldest)
    assert record is not None
    assert record.run_id == "r0"
    assert history.record(pipeline.spec.pipeline, keys.cursor_run_key(pipeline.spec.pipeline, "r9")) is None


def test_a_gap_in_the_ledger_is_seen(pipeline, opened):
    """One of our own clients removed a record."""
    for number in range(3):
        pipeline.publish([str(number)])
        pipeline.run(f"r{number}")
    history = opened()
    history.refresh()
    key = keys.run_record_key(keys.cursor_run_key(pipeline.spec.pipeline, "r1"))
    partition = placed(pipeline, history)
    with foreign_transaction(
        pipeline.spec.kafka, pipeline.spec.ledger.topic, (key, None), partition=partition
    ) as producer:
        producer.commit_transaction(30)
    refreshed(history, lambda: len(history.pipelines[pipeline.spec.pipeline].runs) == 2)
    coverage = history.coverage(history.pipelines[pipeline.spec.pipeline])
    assert coverage.sentence == (
        f"1 gap in what 2 runs read: offset 1 of {pipeline.source}-0 was read by no run"
    )
