"""Verify's result on output with missing records in its middle: a real broker's cleaner removes them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.operations import verification
from airflow_eos.operations.verification import verified_counts, verify_output
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.txn_requests import describe_producers, write_txn_markers
from airflow_eos_testing import EmbeddedKafka, read_topic
from tests.support.local_runs import LocalDataPlane, Pipeline
from tests.support.patience import wait_until
from tests.support.topic_settings import COMPACTED_SOON, change_topic_and_wait


class OneByOne(LocalDataPlane):
    """A batch for each record."""

    batch_bytes = 1


def compacted(kafka: EmbeddedKafka, data: Any, lost: str) -> tuple[Pipeline, Any]:
    """Commit ten records into a compacted topic, supersede a middle one, and wait until it is removed."""
    pipeline = Pipeline(kafka, sink_config=COMPACTED_SOON, partitions=1)
    pipeline.publish([f"v{n}" for n in range(10)])
    record = pipeline.run("r1", data=data)
    assert {finding.outcome for finding in verify_output(kafka.client_config(), record)} == {"ok"}
    producer = Producer({**kafka.client_config(), "linger.ms": 0})

    def is_removed() -> bool:
        # The next record rolls a segment that is old enough; the active one is never cleaned.
        producer.produce(pipeline.sink, key=lost, value="later")
        assert producer.flush(30) == 0
        return lost.encode() not in {r.value for r in read_topic(kafka.bootstrap_servers, pipeline.sink)}

    wait_until(is_removed)
    return pipeline, record


@pytest.mark.parametrize("data", [LocalDataPlane, OneByOne])
def test_what_compaction_has_taken_is_no_mismatch_unless_nothing_compacts(
    embedded_kafka: EmbeddedKafka, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record of a batch, and a whole batch: readers of a compacted topic expect it."""
    pipeline, record = compacted(embedded_kafka, data, "v5")
    (finding,) = verify_output(embedded_kafka.client_config(), record)
    assert (finding.outcome, finding.recorded, finding.found) == ("compacted", 10, 9)
    assert "1 record is gone: the topic is compacted" in finding.detail
    assert verified_counts([finding.to_dict()]) == {"records": 9, "expired": 1}

    # The same log, but no cleaner that may have removed the record.
    change_topic_and_wait(embedded_kafka.admin(), pipeline.sink, {"cleanup.policy": "delete"})
    (finding,) = verify_output(embedded_kafka.client_config(), record)
    assert (finding.outcome, finding.recorded, finding.found) == ("mismatch", 10, 9)
    assert "1 record is missing" in finding.detail
    left = Counter(message.value for message in read_topic(embedded_kafka.bootstrap_servers, pipeline.sink))
    assert [left[b"v%d" % n] for n in range(10)] == [n != 5 for n in range(10)]
    monkeypatch.setattr(verification, "topic_settings", lambda *_: {})
    (finding,) = verify_output(embedded_kafka.client_config(), record)
    assert finding.detail.endswith("whether the topic is compacted may not be read")


@pytest.mark.parametrize(
    ("state", "outcome", "visible"), [(State.STAGED, "ok", 3), (State.PROVEN, "mismatch", 0)]
)
def test_an_abort_marker_that_the_coordinator_did_not_write(
    embedded_kafka: EmbeddedKafka, state: State, outcome: str, visible: int
) -> None:
    """As kafka-transactions.sh writes it: the proof refuses it; after the proof, verify reports the loss."""
    pipeline = Pipeline(embedded_kafka, partitions=1)
    pipeline.publish(["a", "b", "c"])
    sink = TopicPartition(pipeline.sink, 0)
    aborted: list[int] = []

    def entered(now: State) -> None:
        if now is state and not aborted:
            with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
                (writer,) = describe_producers(connections, [sink])[sink]
                aborted.append(writer.producer_id)
                write_txn_markers(
                    connections, writer.producer_id, writer.producer_epoch, [sink], commit=False
                )

    record = pipeline.run(on_state=entered)
    assert aborted == [record.producer.producer_id]
    assert len(pipeline.output()) == visible
    (finding,) = verify_output(embedded_kafka.client_config(), record)
    assert (finding.outcome, finding.recorded, finding.found) == (outcome, 3, visible)
