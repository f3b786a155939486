"""Somebody who may write to the ledger topic, and to nothing else, cannot make or unmake a commit."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from airflow_eos.engine import find_committed
from airflow_eos.engine.admin import dismiss_record
from airflow_eos.engine.queries import create_ledger, ledger_records, run_records
from airflow_eos.exceptions import ConfigurationError, LedgerTampered, LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Explicit, OffsetRange
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos_testing import EmbeddedKafka
from tests.support.local_runs import Pipeline

COUNT = 40


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    made = Pipeline(embedded_kafka, partitions=1)
    made.publish([f"r{n}" for n in range(COUNT)])
    return made


def copies(count):
    return sorted(f"r{n}" for n in range(count))


def given(pipeline, run_id, start=0, end=10):
    return {"run_id": run_id, "ranges": Explicit((OffsetRange(pipeline.source, 0, start, end),))}


def forge(pipeline, key, value, routing=None, transactional_id=None):
    """What a plain producer with Write on the ledger can do; with an id of its own, in a transaction too."""
    spec, ledger = pipeline.spec, pipeline.spec.ledger
    partition = 0
    if routing is not None:
        column = pa.array([routing.encode()], pa.binary())
        partition = int(partitions_for(1, ledger.partitions, topic=ledger.topic, key=column)[0])
    settings = {**spec.kafka, "transactional.id": transactional_id} if transactional_id else dict(spec.kafka)
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.produce(ledger.topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0
    if transactional_id:
        producer.commit_transaction(30)


def record_of(pipeline, run_id):
    spec = replace(pipeline.spec, **given(pipeline, run_id))
    return keys.run_record_key(keys.run_key(spec))


def forged_record(pipeline, victim, template):
    """A run record that says the victim's work is done, made from a true one."""
    spec = replace(pipeline.spec, **given(pipeline, victim, 10, 20))
    data = {**json.loads(template.to_json()), "run_key": keys.run_key(spec), "run_id": victim}
    data["producer"]["transactional_id"] = keys.transactional_id(spec)
    data["ranges"] = [[pipeline.source, 0, 10, 20]]
    data["details"].pop("work")
    return keys.run_record_key(data["run_key"]), json.dumps(data)


def test_a_forged_record_is_no_commit(pipeline, caplog):
    """It is neither an answer nor a free way to write: the run is refused until somebody has looked."""
    template = pipeline.run(**given(pipeline, "r1"))
    key, value = forged_record(pipeline, "r2", template)
    forge(pipeline, key, value, pipeline.spec.pipeline)
    with caplog.at_level(logging.WARNING):
        assert find_committed(replace(pipeline.spec, **given(pipeline, "r2", 10, 20))) is None
    assert "that no run wrote is ignored" in caplog.text
    with pytest.raises(LedgerTampered, match=rf"record of '{key}' at offset \d+ that no run wrote"):
        pipeline.run(**given(pipeline, "r2", 10, 20))
    assert pipeline.output() == copies(10)
    ledger = {"settings": pipeline.spec.ledger, "key": key, "routing": pipeline.spec.pipeline}
    assert dismiss_record(pipeline.spec.kafka, **ledger, execute=False)["done"] is False
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r2", 10, 20))
    assert dismiss_record(pipeline.spec.kafka, **ledger)["done"] is True
    assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found
    assert pipeline.output() == copies(20)
    with pytest.raises(ConfigurationError, match="there is none of others"):
        dismiss_record(pipeline.spec.kafka, **ledger)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_a_commit_is_not_unmade(pipeline, value):
    """Neither a tombstone nor garbage in the place of a record makes its run be done again."""
    assert not pipeline.run(**given(pipeline, "r1")).found
    forge(pipeline, record_of(pipeline, "r1"), value, pipeline.spec.pipeline)
    assert pipeline.run(**given(pipeline, "r1")).found
    assert pipeline.run(**given(pipeline, "r1"), clear_number=1, on_committed="skip").found
    assert pipeline.output() == copies(10)
    listed = ledger_records(pipeline.spec.kafka, pipeline.spec.ledger, key=record_of(pipeline, "r1"))
    assert [one["value"]["run_id"] for one in listed] == ["r1"]


def test_a_record_in_the_transaction_of_another_producer_is_no_commit(pipeline):
    """Whoever may write under some transactional id writes records that name that one's producer, or none."""
    template = pipeline.run(**given(pipeline, "r1"))
    key, value = forged_record(pipeline, "r2", template)
    forge(pipeline, key, value, pipeline.spec.pipeline, "somebody")
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r2", 10, 20))


def test_a_forged_identity_stops_nobody(pipeline):
    """The ledger's identity is what its first user pinned in a transaction."""
    create_ledger(pipeline.spec.kafka, pipeline.spec.ledger, pipeline.spec.prefix)
    forged = json.dumps({"v": 1, "topic_id": "somebody's", "partitions": 1, "prefix": "theirs"})
    forge(pipeline, keys.LEDGER_IDENTITY_KEY, forged)
    assert not pipeline.run(**given(pipeline, "r1")).found


def test_a_record_above_an_open_transaction_is_not_waited_for(pipeline):
    """It cost a minute, and then nobody knew."""
    pipeline.run(**given(pipeline, "r1"))
    ledger = pipeline.spec.ledger
    other = Producer({**pipeline.spec.kafka, "transactional.id": "held"})
    other.init_transactions(30)
    other.begin_transaction()
    for partition in range(ledger.partitions):
        other.produce(ledger.topic, key="theirs", value="x", partition=partition)
    assert other.flush(30) == 0
    try:
        forge(pipeline, record_of(pipeline, "r1"), b"{}", pipeline.spec.pipeline)
        assert pipeline.run(**given(pipeline, "r1")).found
        assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found
    finally:
        other.abort_transaction(30)


def test_a_record_that_cannot_be_read_is_named_and_does_not_hide_the_others(pipeline):
    """Whoever owns a transactional id may write anything under a key: that run stops, no other."""
    pipeline.run(**given(pipeline, "r1"))
    spec = replace(pipeline.spec, **given(pipeline, "r2", 10, 20))
    key = record_of(pipeline, "r2")
    newer = json.dumps({"v": 99, "producer": None})
    for value, reason in (
        (b"garbage", "JSONDecodeError"),
        (b"[1]", "TypeError"),
        (newer, "upgrade this one"),
    ):
        forge(pipeline, key, value, spec.pipeline, "somebody")
        with pytest.raises(LedgerUnreadable, match=rf"run record '{key}' .*{reason}"):
            pipeline.run(**given(pipeline, "r2", 10, 20))
    records, unreadable = run_records(spec.kafka, spec.ledger, pipeline=spec.pipeline)
    assert [record.run_id for record in records] == ["r1"]
    assert len(unreadable) == 1
    assert "version 99" in unreadable[0]
    assert not pipeline.run(**given(pipeline, "r3", 20, 30)).found
