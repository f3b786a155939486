"""The same tests on Kafka 3.6, the oldest supported one, on 3.9 with transaction version 1, and on 4.4.

``EOS_KAFKA_VERSION=4.4.0 pytest FILE`` runs any other test on a version.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.recordbatch.sealer import seal
from airflow_eos.spark.targets import describe_targets
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import end_txn
from airflow_eos_testing import EmbeddedKafka
from tests.integration.test_broker_cluster import (
    test_broker_settings_of_a_default_broker,
    test_committed_waits_for_pending_offsets,
    test_producers_are_listed_with_epoch_and_last_sequence,
)
from tests.integration.test_broker_ledger import (
    test_our_commit_above_a_foreign_open_transaction_is_in_the_tail,
    test_views_agree_with_a_consumer_at_every_step_of_random_histories,
)
from tests.integration.test_broker_transactions import (
    fence,
    name,
    test_a_commit_publishes_offsets_metadata_and_ledger_records_together,
    test_a_commit_that_arrives_after_our_own_abort_is_refused,
    test_a_commit_that_arrives_after_the_next_fence_is_refused,
    test_a_fence_aborts_what_an_older_attempt_left_open,
    test_a_fenced_session_cannot_do_anything,
    test_abort_after_a_completed_commit_finds_nothing_open_and_changes_nothing,
    test_abort_before_anything_was_added_finds_nothing_open,
    test_abort_of_our_own_open_transaction,
    test_abort_with_an_older_identity_leaves_the_live_transaction_alone,
    test_the_coordinator_sees_exactly_the_partitions_that_were_added_or_staged,
)
from tests.support.brokers import tp
from tests.support.wire_requests import open_transaction

__all__ = [
    "fence",
    "name",
    "test_a_commit_publishes_offsets_metadata_and_ledger_records_together",
    "test_a_commit_that_arrives_after_our_own_abort_is_refused",
    "test_a_commit_that_arrives_after_the_next_fence_is_refused",
    "test_a_fence_aborts_what_an_older_attempt_left_open",
    "test_a_fenced_session_cannot_do_anything",
    "test_abort_after_a_completed_commit_finds_nothing_open_and_changes_nothing",
    "test_abort_before_anything_was_added_finds_nothing_open",
    "test_abort_of_our_own_open_transaction",
    "test_abort_with_an_older_identity_leaves_the_live_transaction_alone",
    "test_broker_settings_of_a_default_broker",
    "test_committed_waits_for_pending_offsets",
    "test_our_commit_above_a_foreign_open_transaction_is_in_the_tail",
    "test_producers_are_listed_with_epoch_and_last_sequence",
    "test_the_coordinator_sees_exactly_the_partitions_that_were_added_or_staged",
    "test_views_agree_with_a_consumer_at_every_step_of_random_histories",
]


@pytest.fixture(scope="module", params=["3.6.2", pytest.param("3.9.2", marks=pytest.mark.chaos), "4.4.0"])
def embedded_kafka(request):
    """Replaces the shared broker of the default version."""
    with EmbeddedKafka(version=request.param) as kafka:
        yield kafka


def test_batches_fit_a_topics_segments(embedded_kafka, config, kafka_topic):
    """Brokers refuse larger ones, whatever max.message.bytes says; from 4.0 on no segment is below 1 MiB."""
    size = 100_000 if embedded_kafka.version.startswith("3.") else 1 << 20
    partition = tp(kafka_topic("segments", config={"segment.bytes": str(size)}))
    value = pa.array([np.random.default_rng(5).bytes(10_000)] * 150, pa.binary())
    with BrokerConnections(ClientConfig.of(config)) as connections:
        limit = describe_targets(connections, [partition.topic])[partition.topic].max_message_bytes
        batches = seal(
            value, np.zeros(150, np.int32), topic=partition.topic, compressor="none", max_message_bytes=limit
        )
        identity = open_transaction(connections, f"tx-{partition}", [partition])
        sent = [(batch.records, batch.data) for batch in batches]
        (receipt,) = send_partitions(connections, identity, {partition: sent})
        assert (limit, receipt.records) == (size, 150)
        end_txn(connections, identity, commit=False)
