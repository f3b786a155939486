"""Quotas of real brokers: a throttled client keeps its order, logs the reason, and fails only if it must."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.admin import AlterClientQuotasRequest
from kafka.protocol.metadata import MetadataRequest

from airflow_eos.exceptions import DeliveryTimedOut
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import end_txn
from tests.support.patience import wait_until
from tests.support.wire_requests import (
    commit,
    fetch_range,
    open_transaction,
    partition,
    read,
    sealed,
    slowly,
    texts,
    transaction,
    values_of,
)


def limit(connections, client_id, quota, value):
    """Set a client's quota."""
    entry = AlterClientQuotasRequest.EntryData
    given = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[entry.OpData(key=quota, value=value, remove=False)],
    )
    request = AlterClientQuotasRequest(entries=[given], validate_only=False, max_version=1)
    assert connections.run(connections.ask_any_async(request)).entries[0].error_code == 0


def test_a_client_that_is_throttled_after_each_answer_gets_the_next_one(embedded_kafka, connections, caplog):
    """A request sent while the broker throttles the client waits: a retry would be throttled, too."""
    limit(connections, "few-requests", "request_percentage", 0.0001)
    request = MetadataRequest(topics=[], max_version=12)
    with BrokerConnections({**embedded_kafka.client_config(), "client.id": "few-requests"}) as throttled:
        (node,) = throttled.brokers()
        wait_until(lambda: throttled.wait(throttled.send(request, node)).brokers and caplog.messages)
    assert [text.split(":")[0] for text in caplog.messages] == ["a broker throttles this client"]


def test_a_throttled_client_is_told_of_its_quota(embedded_kafka, connections, kafka_topic):
    """The broker answers, but accepts the next request only seconds later, so that the batch times out."""
    topic = kafka_topic("throttled")
    tp = partition(topic)
    identity = open_transaction(connections, topic, [tp])
    client = {**embedded_kafka.client_config(), "client.id": "throttled"}
    limit(connections, "throttled", "producer_byte_rate", 1.0)
    batches = {tp: slowly(itertools.cycle(sealed(texts("a", 10))))}
    message = r"within 2 s .*throttles this client: see the quotas"
    with BrokerConnections(client) as throttled, pytest.raises(DeliveryTimedOut, match=message):
        send_partitions(throttled, identity, batches, delivery_timeout=2.0)
    end_txn(connections, identity, commit=False)


def test_batches_keep_their_order_while_a_broker_throttles_the_client(
    embedded_kafka, connections, kafka_topic
):
    """Batches of a partition wait for the end of the pause: out of order, the broker would refuse them."""
    topic = kafka_topic("in-order")
    tp = partition(topic)
    identity = open_transaction(connections, topic, [tp])
    limit(connections, "in-order", "producer_byte_rate", 98_000.0)
    # More than the quota allows in the brokers' window of 10 s, then batches that cost some ms each.
    written = ["x" * 1_000_000, *texts("a", 12)]
    with BrokerConnections({**embedded_kafka.client_config(), "client.id": "in-order"}) as throttled:
        (receipt,) = send_partitions(throttled, identity, {tp: sealed(written, 1)})
        assert throttled.throttled
    commit(connections, identity, [receipt])
    assert values_of(read(connections, tp)) == written


def test_readers_who_share_a_small_quota_take_turns(embedded_kafka, connections, kafka_topic):
    """Each waits while the others use the quota, longer than for a broker that serves no data."""
    tp = partition(kafka_topic("shared-quota"))
    receipt = transaction(connections, tp, ["x" * 50_000] * 3, records_per_batch=1)
    limit(connections, "many-readers", "consumer_byte_rate", 50_000.0)
    client = {**embedded_kafka.client_config(), "client.id": "many-readers"}

    def records_of(_):
        with BrokerConnections(client) as throttled:
            end = receipt.last_offset + 1
            batches = fetch_range(throttled, tp.topic, 0, 0, end, max_bytes=50_000, stall_timeout=1.0)
            return sum(len(batch) for batch in batches)

    with ThreadPoolExecutor(4) as readers:
        assert list(readers.map(records_of, range(4))) == [3] * 4
