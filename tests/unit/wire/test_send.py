"""The dispatcher: which requests are sent, and what happens if brokers refuse, vanish or answer nonsense."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import kafka.errors as kafka_errors
import numpy as np
import pyarrow as pa
import pytest
from kafka.future import Future

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokerUnsupported,
    DeliveryTimedOut,
    DuplicateReceipt,
    ProducerFenced,
    ProtocolViolation,
    RecordTooLarge,
    SinkChanged,
)
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import BatchHeader
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.wire import produce
from airflow_eos.wire.error_codes import PRODUCE, Fatal
from airflow_eos.wire.produce import send_partitions
from tests.unit.wire.fakes import FakeConnections, as_usual, kind_of

IDENTITY = ProducerIdentity("work", 7, 2)


class FakeBrokers(FakeConnections):
    """Leaders with logs in memory; answers to Produce can be scripted.

    A partition's log is a list of (first offset, sequence, bytes). The broker's rules for sequences
    apply, with a memory of five batches. The transaction stays open: the last stable offset never moves.
    """

    def __init__(self, leaders):
        super().__init__(leaders)
        self.logs = {partition: [] for partition in leaders}
        self.ends = dict.fromkeys(leaders, 100)
        self.stable = dict(self.ends)
        self.in_flight = Counter()
        self.most_in_flight = Counter()
        self.bytes_in_flight = 0
        self.most_bytes = 0
        self.requests_in_flight = 0
        self.most_requests = 0

    @property
    def sends(self):
        return [(node, request) for node, request in self.requests if kind_of(request) == "Produce"]

    def scripted(self, request):
        return bool(self.script) and kind_of(request) == "Produce"

    def started(self, request):
        if kind_of(request) == "Produce":
            for partition, data in parts(request):
                self.bytes_in_flight += len(data)
                self.in_flight[partition] += 1
                self.most_in_flight[partition] = max(
                    self.most_in_flight[partition], self.in_flight[partition]
                )
            self.most_bytes = max(self.most_bytes, self.bytes_in_flight)
            self.requests_in_flight += 1
            self.most_requests = max(self.most_requests, self.requests_in_flight)

    def ended(self, request):
        if kind_of(request) == "Produce":
            for partition, data in parts(request):
                self.bytes_in_flight -= len(data)
                self.in_flight[partition] -= 1
            self.requests_in_flight -= 1

    def handle(self, request, node):
        return self._offsets(request) if kind_of(request) == "ListOffsets" else self.produce(request, node)

    # -- what a broker does

    def _offsets(self, request):
        ends = self.stable if request.isolation_level else self.ends
        topics = {}
        for topic in request.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                topics.setdefault(topic.name, []).append(
                    SimpleNamespace(
                        partition_index=part.partition_index,
                        error_code=0,
                        offset=ends[partition],
                        timestamp=-1,
                        leader_epoch=0,
                    )
                )
        return SimpleNamespace(
            topics=[SimpleNamespace(name=name, partitions=partitions) for name, partitions in topics.items()]
        )

    def produce(self, request, node, codes=None):
        """Append like a broker; ``codes`` answers these partitions with an error, without an append."""
        answers = {}
        for partition, data in parts(request):
            code, base = (codes or {}).get(partition, 0), -1
            if not code and self.leaders[partition] != node:
                code = 6
            if not code:
                code, base = self._append(partition, data)
            answers.setdefault(partition.topic, []).append(
                SimpleNamespace(
                    index=partition.partition, error_code=code, base_offset=base, error_message=None
                )
            )
        return SimpleNamespace(
            responses=[
                SimpleNamespace(name=name, partition_responses=partitions)
                for name, partitions in answers.items()
            ]
        )

    def _append(self, partition, data):
        header = BatchHeader.unpack(data)
        sequence = header.base_sequence
        log = self.logs[partition]
        for base, old_sequence, old in log[-5:]:
            # First and last sequence decide, never the content.
            if (old_sequence, BatchHeader.unpack(old).record_count) == (sequence, header.record_count):
                return 0, base
        expected = sum(BatchHeader.unpack(d).record_count for *_, d in log)
        if sequence != expected:
            return 45, -1
        base = self.ends[partition]
        log.append((base, sequence, data))
        self.ends[partition] += BatchHeader.unpack(data).record_count
        return 0, base

    def refuse(self, code, partition=None):
        """Script one answer: this code for one partition (all partitions without ``partition``)."""
        self.script.append(
            lambda request, node: self.produce(
                request, node, {p: code for p, _ in parts(request) if partition in (None, p)}
            )
        )

    def lose_answer(self):
        """Script one answer: the broker carries out the request, but the client gets no answer."""

        def lost(request, node):
            self.handle(request, node)
            return kafka_errors.KafkaConnectionError("socket disconnected")

        self.script.append(lost)

    def lose_request(self):
        """Script one answer: the broker does not get the request."""
        self.script.append(lambda *_: kafka_errors.KafkaConnectionError("socket disconnected"))

    def values(self, partition):
        return [BatchHeader.unpack(data).record_count for *_, data in self.logs[partition]]


def parts(request):
    return [
        (TopicPartition(topic.name, part.index), bytes(part.records))
        for topic in request.topic_data
        for part in topic.partition_data
    ]


def tp(partition):
    return TopicPartition("out", partition)


def sealed(records=3, size=10):
    values = pa.array([bytes([n % 251]) * size for n in range(records)], pa.binary())
    (batch,) = seal(values, np.zeros(records, np.int32), topic="out", compressor="none")
    return batch.records, batch.data


@pytest.fixture
def brokers():
    fake = FakeBrokers({tp(n): n % 2 for n in range(4)})
    yield fake
    fake.close()


def send(brokers, counts, *, records=3, **options):
    batches = {partition: [sealed(records)] * count for partition, count in counts.items()}
    return send_partitions(brokers, IDENTITY, batches, **options)


def test_everything_is_written_once_and_in_order(brokers):
    """The receipts of all partitions match the logs."""
    receipts = send(brokers, {tp(0): 7, tp(1): 1, tp(2): 12})
    assert [(r.partition, r.records, r.first_offset, r.last_offset, r.last_sequence) for r in receipts] == [
        (0, 21, 100, 120, 20),
        (1, 3, 100, 102, 2),
        (2, 36, 100, 135, 35),
    ]
    assert [len(brokers.logs[tp(n)]) for n in range(4)] == [7, 1, 12, 0]


def test_first_batches_of_a_broker_leave_in_one_request(brokers):
    """The partitions of one broker are verified together, in one request per broker."""
    send(brokers, {tp(n): 3 for n in range(4)})
    first = brokers.sends[:2]
    assert {node: {partition for partition, _ in parts(request)} for node, request in first} == {
        0: {tp(0), tp(2)},
        1: {tp(1), tp(3)},
    }


def test_a_partition_has_one_batch_per_request(brokers):
    """Brokers refuse two batches of a partition in one request."""
    send(brokers, {tp(0): 20, tp(2): 20})
    for _, request in brokers.sends:
        wheres = [partition for partition, _ in parts(request)]
        assert len(wheres) == len(set(wheres))


def test_at_most_five_batches_of_a_partition_are_in_flight(brokers):
    """Exactly five are: sending is pipelined."""
    send(brokers, {tp(0): 30})
    assert brokers.most_in_flight[tp(0)] == 5


def test_requests_are_transactional_wait_for_all_replicas_and_stay_below_version_12(brokers):
    """From version 12 on a broker adds partitions to the transaction by itself."""
    send(brokers, {tp(0): 2})
    for _, request in brokers.sends:
        assert request.transactional_id == "work"
        assert request.acks == -1
        assert (request._min_version, request._max_version) == (9, 11)


def test_the_broker_answers_before_the_client_gives_up(brokers):
    """The broker's time-out is shorter than the request's: a slow follower must not cost the connection."""
    send(brokers, {tp(0): 1})
    assert brokers.sends[0][1].timeout_ms < brokers.request_timeout * 1000


def test_bytes_in_flight_are_bounded(monkeypatch):
    """A task with many partitions puts them neither all in flight at once, nor in one request."""
    size = len(sealed(3, 1000)[1])
    monkeypatch.setattr(produce, "MAX_BYTES_IN_FLIGHT", 5 * size)
    monkeypatch.setattr(produce, "MAX_REQUEST_BYTES", 3 * size)
    # More partitions of one broker than either limit allows.
    brokers = FakeBrokers({tp(n): 0 for n in range(8)})
    try:
        send_partitions(brokers, IDENTITY, {tp(n): [sealed(3, 1000)] * 10 for n in range(8)})
    finally:
        brokers.close()
    assert brokers.most_bytes == 5 * size
    assert max(len(parts(request)) for _, request in brokers.sends) == 3


def test_requests_in_flight_are_bounded(monkeypatch):
    """A broker handles the requests of a connection one by one: more of them would just wait there."""
    monkeypatch.setattr(produce, "MAX_REQUEST_BYTES", 1)  # one batch each
    monkeypatch.setattr(produce, "MAX_REQUESTS_PER_BROKER", 3)
    brokers = FakeBrokers({tp(n): 0 for n in range(8)})
    try:
        send_partitions(brokers, IDENTITY, {tp(n): [sealed(3, 10)] * 10 for n in range(8)})
    finally:
        brokers.close()
    assert brokers.most_requests == 3


def test_a_batch_above_every_limit_is_still_sent(brokers, monkeypatch):
    """Limits apply to what is packed together, not to what can be sent."""
    monkeypatch.setattr(produce, "MAX_BYTES_IN_FLIGHT", 10)
    monkeypatch.setattr(produce, "MAX_REQUEST_BYTES", 10)
    receipts = send(brokers, {tp(0): 3, tp(2): 3})
    assert [r.records for r in receipts] == [9, 9]


@pytest.mark.parametrize("code", sorted(code for code, d in PRODUCE.items() if not isinstance(d, Fatal)))
def test_every_retriable_code_ends_in_an_exact_log(brokers, code):
    """Refused once at the first batch and once within the window: everything is written once, in order."""
    brokers.refuse(code, tp(0))
    brokers.script.append(as_usual)
    brokers.refuse(code, tp(0))
    (receipt,) = send(brokers, {tp(0): 12})
    assert (receipt.records, receipt.batches) == (36, 12)
    assert [sequence for _, sequence, _ in brokers.logs[tp(0)]] == list(range(0, 36, 3))


@pytest.mark.parametrize("code", sorted(code for code, d in PRODUCE.items() if isinstance(d, Fatal)))
def test_every_fatal_code_stops_all_partitions(brokers, code):
    """The error is of the table's class, names the partition, and no connection keeps unsent bytes."""
    brokers.refuse(code, tp(0))
    with pytest.raises(PRODUCE[code].error, match=r"out-0 .*error"):
        send(brokers, {tp(0): 50, tp(2): 50}, records=1)
    assert brokers.hung_up == {0}
    assert len(brokers.logs[tp(2)]) <= 2


@pytest.mark.parametrize("code", sorted(code for code, d in PRODUCE.items() if getattr(d, "refresh", False)))
def test_a_moved_leader_is_looked_up(brokers, code):
    """After codes that mean "not here", the sender looks the leader up and sends there."""
    brokers.leaders[tp(0)] = 0

    def move(request, node):
        brokers.leaders[tp(0)] = 1
        return brokers.produce(request, node, {tp(0): code})

    brokers.script.append(move)
    send(brokers, {tp(0): 3})
    assert brokers.refreshes >= 1
    assert {node for node, _ in brokers.sends} == {0, 1}


def test_a_lost_answer_is_repeated_and_not_written_twice(brokers):
    """The broker knows the sequence and answers with the earlier offset."""
    brokers.lose_answer()
    brokers.script.append(as_usual)
    brokers.lose_answer()
    (receipt,) = send(brokers, {tp(0): 10})
    assert (receipt.records, receipt.first_offset, receipt.last_offset) == (30, 100, 129)
    assert len(brokers.logs[tp(0)]) == 10


def test_a_whole_window_of_lost_answers_is_recognised(brokers):
    """Five batches written, five answers lost: exactly as many as a broker remembers."""
    brokers.script.append(as_usual)
    for _ in range(5):
        brokers.lose_answer()
    (receipt,) = send(brokers, {tp(0): 10})
    assert receipt.records == 30
    assert len(brokers.logs[tp(0)]) == 10


def test_a_lost_request_is_repeated_with_the_same_bytes(brokers):
    """A lost request is sent again, byte for byte."""
    brokers.lose_request()
    send(brokers, {tp(0): 1})
    first, second = (parts(request)[0][1] for _, request in brokers.sends)
    assert first == second


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.KafkaConnectionError("gone"),
        kafka_errors.NodeNotReadyError("back-off"),
        kafka_errors.RequestTimedOutError("slow"),
        kafka_errors.KafkaTimeoutError("slow"),
        kafka_errors.UnknownBrokerIdError(3),
        kafka_errors.Cancelled(),
        ConnectionResetError("reset"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_connection_errors_are_survived(brokers, error):
    """Whatever error kafka-python raises for a dead broker: look up the leader, send the same bytes."""
    brokers.script.append(lambda *_: error)
    (receipt,) = send(brokers, {tp(0): 2})
    assert receipt.records == 6
    assert brokers.refreshes >= 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kafka_errors.IncompatibleBrokerVersion("Produce"), BrokerUnsupported),
        (kafka_errors.TopicAuthorizationFailedError("out"), AuthorizationFailed),
    ],
    ids=["version", "authorization"],
)
def test_client_side_refusals_are_not_retried(brokers, error, expected):
    """If a retry cannot help, the send stops at once with an error of this package."""
    brokers.script.append(lambda *_: error)
    with pytest.raises(expected, match="out-0"):
        send(brokers, {tp(0): 2})
    assert len(brokers.sends) == 1


def test_an_answer_that_leaves_a_partition_out_is_no_acknowledgement(brokers):
    """A missing partition in an answer is not a success: the batch is sent again."""
    brokers.script.append(lambda *_: SimpleNamespace(responses=[]))
    (receipt,) = send(brokers, {tp(0): 1})
    assert receipt.records == 3
    assert len(brokers.sends) == 2


def test_a_second_attempt_in_the_same_epoch_is_found(brokers):
    """The broker acknowledges known sequences without comparing content: the offsets reveal it."""
    send(brokers, {tp(0): 1})
    with pytest.raises(DuplicateReceipt, match="another attempt"):
        send(brokers, {tp(0): 1})
    assert len(brokers.logs[tp(0)]) == 1


def test_a_second_attempt_with_other_batch_sizes_is_found(brokers):
    """The broker refuses sequences that do not follow on: the run stops."""
    send(brokers, {tp(0): 1})
    with pytest.raises(ProtocolViolation, match="45"):
        send_partitions(brokers, IDENTITY, {tp(0): [sealed(2), sealed(2), sealed(2)]} | {tp(1): [sealed()]})


def test_a_fence_in_the_middle_stops_the_task(brokers):
    """A newer attempt exists: nothing more is written by this one."""
    brokers.script += [as_usual] * 3
    brokers.refuse(47)
    with pytest.raises(ProducerFenced):
        send(brokers, {tp(0): 50})
    assert len(brokers.logs[tp(0)]) < 10


@pytest.mark.parametrize("code", [10, 18])
def test_a_record_that_is_too_large_names_the_setting(brokers, code):
    """The message names the setting to raise."""
    brokers.refuse(code)
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes|segment\.bytes"):
        send(brokers, {tp(0): 1}, records=1)


@pytest.mark.parametrize("code", [10, 18])
def test_a_batch_that_is_too_large_is_no_records_fault(brokers, code):
    """It was made for an earlier limit, or for one that may not be read: smaller batches may fit."""
    brokers.refuse(code)
    with pytest.raises(SinkChanged, match="grant DescribeConfigs on the topic"):
        send(brokers, {tp(0): 1})


def test_delivery_times_out(brokers):
    """A broker that never accepts ends the send after the delivery time-out, with its last answer."""
    for _ in range(1000):
        brokers.refuse(19)
    with pytest.raises(DeliveryTimedOut, match=r"out-0: .*error 19"):
        send(brokers, {tp(0): 1}, delivery_timeout=0.3)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "while others answer"])
def test_delivery_to_a_broker_that_hangs_times_out(brokers, others, monkeypatch):
    """No answer arrives, not even an error: the delivery time-out does not wait for the request's."""
    monkeypatch.setattr(produce, "_LEAST_WAIT", 0.1)
    brokers.script += [as_usual] * (1 + others)
    answers = brokers.send

    def send_to(request, node, **options):
        is_hanging = kind_of(request) == "Produce" and node == 0 and brokers.logs[tp(0)]
        return Future() if is_hanging else answers(request, node, **options)

    brokers.send = send_to
    with pytest.raises(DeliveryTimedOut, match=r"out-0: .*3 records before it were"):
        send(brokers, {tp(0): 9} | {tp(1): 9 for _ in range(others)}, delivery_timeout=0.2)
    assert len(brokers.logs[tp(1)]) == 9 * others
    assert 0 in brokers.hung_up


def test_an_answer_that_came_while_a_source_was_slow_counts(brokers, clock):
    """Batches are read from Spark between two checks for answers."""

    def slow():
        for _ in range(3):
            clock.now += 1000.0
            yield sealed()

    batches = {tp(0): [sealed()] * 9, tp(1): slow(), tp(2): slow()}
    receipts = send_partitions(brokers, IDENTITY, batches, delivery_timeout=10.0)
    assert [r.records for r in receipts] == [27, 9, 9]


def test_a_partition_that_stays_without_a_leader_times_out(brokers, clock):
    """There is no leader any more when the sending begins: the error says so."""
    offsets = brokers._offsets

    def then_gone(request):
        brokers.leaders[tp(0)] = None
        return offsets(request)

    async def in_vain(_names):
        brokers.refreshes += 1
        clock.now += 0.1
        return True

    brokers._offsets = then_gone
    brokers.refresh_async = in_vain
    with pytest.raises(DeliveryTimedOut, match="no leader"):
        send(brokers, {tp(0): 1}, delivery_timeout=0.3)
    assert brokers.refreshes > 1


def test_a_stuck_partition_does_not_hold_up_the_others(brokers):
    """While one partition is refused, the others of the same broker continue."""
    for _ in range(12):
        brokers.refuse(19, tp(0))
    receipts = send(brokers, {tp(0): 2, tp(2): 20})
    assert [r.records for r in receipts] == [6, 60]
    written = [node for node, request in brokers.sends if {w for w, _ in parts(request)} == {tp(2)}]
    assert len(written) > 8


@pytest.mark.parametrize(("throttled", "why"), [(False, "error 19"), (True, "a broker throttles")])
def test_the_tasks_time_ends_the_send(brokers, throttled, why):
    """The transaction's time is not exceeded, whatever single batches may take; a quota is named."""
    brokers.throttled = throttled
    for _ in range(1000):
        brokers.refuse(19)
    with pytest.raises(DeliveryTimedOut, match=rf"the task's time is over with 2 partitions.*: {why}"):
        send(brokers, {tp(0): 1, tp(2): 1}, timeout=0.3)
    assert all(seconds <= 0.3 for seconds in brokers.waits)


def test_an_error_while_looking_for_leaders_is_raised(brokers):
    """It does not wait for a topic that was deleted, or may no longer be described."""

    async def refused(names):
        raise AuthorizationFailed("no more")

    brokers.refresh_async = refused
    brokers.refuse(6)
    with pytest.raises(AuthorizationFailed, match="no more"):
        send(brokers, {tp(0): 1})


def faulty(rng):
    """Return brokers that refuse and lose some requests, and counts of batches to send to them."""
    brokers = FakeBrokers({tp(n): n % 2 for n in range(4)})
    for _ in range(rng.integers(0, 12)):
        fault = rng.integers(0, 4)
        if fault == 0:
            brokers.refuse(int(rng.choice([6, 7, 19, 51, 3])))
        elif fault == 1:
            brokers.lose_answer()
        elif fault == 2:
            brokers.lose_request()
        else:
            brokers.script.append(as_usual)
    return brokers, {tp(n): int(rng.integers(0, 9)) for n in range(4)}


def test_random_faults_never_break_the_log():
    """Many sends with random faults: every record once, in order. They wait, so they run concurrently."""
    rng = np.random.default_rng(20261121)
    cases = [faulty(rng) for _ in range(60)]
    with ExitStack() as stack, ThreadPoolExecutor(len(cases)) as threads:
        for brokers, _ in cases:
            stack.callback(brokers.close)
        for (brokers, counts), receipts in zip(
            cases, threads.map(lambda case: send(*case), cases), strict=True
        ):
            assert {tp(r.partition): r.batches for r in receipts} == counts
            for partition, count in counts.items():
                assert [sequence for _, sequence, _ in brokers.logs[partition]] == list(
                    range(0, 3 * count, 3)
                )
