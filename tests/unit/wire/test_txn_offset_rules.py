"""Offsets in a transaction against scripted coordinators: every answer, and its effect."""

from __future__ import annotations

from types import SimpleNamespace

import kafka.errors as kafka_errors
import pytest

from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.model.kafka import CommittedOffset, ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.error_codes import ADD_OFFSETS, TXN_OFFSET_COMMIT, Fatal, Retry
from airflow_eos.wire.txn_offsets import add_offsets_to_txn, commit_offsets_in_txn, stage_offsets
from tests.unit.wire.fakes import ScriptedCoordinator, kind_of

IDENTITY = ProducerIdentity("work", 7, 2)
OFFSETS = {
    TopicPartition("orders", 1): CommittedOffset(20, "meta"),
    TopicPartition("orders", 0): CommittedOffset(10),
    TopicPartition("clicks", 0): CommittedOffset(5, "meta"),
}


class FakeCoordinators(ScriptedCoordinator):
    """Coordinators of transaction and group; a code is the answer for the last partition only."""

    def answer(self, request, code):
        if kind_of(request) == "AddOffsetsToTxn":
            return SimpleNamespace(error_code=code)
        parts = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=name,
                    partitions=[
                        SimpleNamespace(
                            partition_index=index, error_code=code if (name, index) == parts[-1] else 0
                        )
                    ],
                )
                for name, index in parts
            ]
        )


@pytest.fixture
def coordinators():
    fake = FakeCoordinators()
    yield fake
    fake.close()


def add(connections, **options):
    add_offsets_to_txn(connections, IDENTITY, "group", **options)


def commit(connections, **options):
    commit_offsets_in_txn(connections, IDENTITY, "group", OFFSETS, **options)


REQUESTS = [
    pytest.param(add, ADD_OFFSETS, "work", id="add"),
    pytest.param(commit, TXN_OFFSET_COMMIT, "group", id="commit"),
]


def codes(table, kind):
    return sorted(code for code, decision in table.items() if isinstance(decision, kind))


def test_the_group_is_added_first_and_its_offsets_are_sent_as_one_request(coordinators):
    """With our identity, without membership; in the request versions that librdkafka uses."""
    stage_offsets(coordinators, IDENTITY, "group", OFFSETS)
    (_, added), (_, sent) = coordinators.requests
    for request in (added, sent):
        who = (request.transactional_id, request.producer_id, request.producer_epoch)
        assert (*who, request.group_id) == ("work", 7, 2, "group")
    assert added._max_version == 3
    assert (sent.generation_id, sent.member_id, sent.group_instance_id) == (-1, "", None)
    assert (sent._min_version, sent._max_version) == (3, 3)
    assert {
        (topic.name, part.partition_index): (part.committed_offset, part.committed_metadata)
        for topic in sent.topics
        for part in topic.partitions
    } == {("clicks", 0): (5, "meta"), ("orders", 0): (10, ""), ("orders", 1): (20, "meta")}


@pytest.mark.parametrize(
    ("request_", "table", "key", "code"),
    [
        pytest.param(*param.values, code, id=f"{param.id}-{code}")
        for param in REQUESTS
        for code in codes(param.values[1], Retry)
    ],
)
def test_every_retriable_code_is_survived(coordinators, request_, table, key, code):
    """The same request is sent again, to a coordinator that is looked up again if the code says so."""
    coordinators.codes = [code, code]
    request_(coordinators)
    assert len(coordinators.requests) == 3
    assert coordinators.forgotten == [key] * (2 if table[code].refresh else 0)


@pytest.mark.parametrize(
    ("request_", "table", "code"),
    [
        pytest.param(*param.values[:2], code, id=f"{param.id}-{code}")
        for param in REQUESTS
        for code in codes(param.values[1], Fatal)
    ],
)
def test_every_other_code_ends_it_at_once(coordinators, request_, table, code):
    """The error names transaction and group."""
    coordinators.codes = [code]
    with pytest.raises(table[code].error, match=r"transaction of 'work': .* 'group'"):
        request_(coordinators)
    assert len(coordinators.requests) == 1


def test_the_partition_whose_offset_was_refused_is_named(coordinators):
    """The error names the one among all partitions of the request."""
    coordinators.codes = [29]
    with pytest.raises(TXN_OFFSET_COMMIT[29].error, match=r"orders-1.*grant Read on the topic"):
        commit(coordinators)


@pytest.mark.parametrize(("request_", "key"), [(add, "work"), (commit, "group")])
def test_a_coordinator_whose_connection_breaks_is_looked_up_anew(coordinators, request_, key):
    """It died, or it hangs: librdkafka would wait for it."""
    coordinators.codes = [kafka_errors.KafkaConnectionError("gone"), kafka_errors.RequestTimedOutError()]
    request_(coordinators)
    assert coordinators.forgotten == [key, key]
    assert len(coordinators.requests) == 3


@pytest.mark.parametrize("request_", [add, commit])
def test_it_ends_in_time(coordinators, request_):
    """The error has the last answer."""
    coordinators.codes = [16] * 1000
    with pytest.raises(BrokersUnavailable, match=r"within 0 s; .*NOT_COORDINATOR"):
        request_(coordinators, timeout=0.3)
