"""The sending order of one partition: what may be in flight, the effect of errors, what answers prove."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.exceptions import DeliveryTimedOut, DuplicateReceipt, ProducerFenced, ProtocolViolation
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import BatchHeader
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.wire.backoff import FIRST_PAUSE
from airflow_eos.wire.error_codes import PRODUCE, Retry, reaction
from airflow_eos.wire.partition_queue import MAX_IN_FLIGHT, Ack, PartitionQueue, Refusal

WHERE = TopicPartition("out", 3)
IDENTITY = ProducerIdentity("work", 7, 2)
RECORDS = 3


def sealed(records=RECORDS, text="v"):
    values = pa.array([f"{text}{n}".encode() for n in range(records)], pa.binary())
    (batch,) = seal(values, np.zeros(records, np.int32), topic="out")
    return batch.records, batch.data


def queue(batches=10, *, end_before=100, delivery_timeout=120.0):
    source = iter([sealed(text=f"b{n}-") for n in range(batches)])
    return PartitionQueue(WHERE, IDENTITY, source, end_before, delivery_timeout)


def send(queue, now=0.0):
    batch = queue.next_batch(now)
    assert batch is not None
    queue.sent(batch, now)
    return batch


def send_all(queue, now=0.0):
    sent = []
    while (batch := queue.next_batch(now)) is not None:
        queue.sent(batch, now)
        sent.append(batch)
    return sent


def refusal(code):
    return Refusal(reaction(PRODUCE, code), f"error {code}")


def proven(**options):
    """A queue whose first batch is acknowledged at offset 100."""
    lane = queue(**options)
    lane.settle(send(lane), Ack(100), 0.0)
    return lane


def test_one_batch_only_before_the_first_acknowledgement():
    """Nothing is pipelined before the broker has accepted the partition's first batch."""
    fresh = queue()
    assert len(send_all(fresh)) == 1


def test_five_batches_at_most_are_in_flight():
    """After the first acknowledgement the window is five batches, as many as a broker remembers."""
    lane = proven()
    assert len(send_all(lane)) == MAX_IN_FLIGHT == 5


def test_sequences_begin_at_zero_and_follow_the_records():
    """Each batch has the identity, the number of records before it, and a valid checksum."""
    lane = proven()
    batches = send_all(lane)
    headers = [BatchHeader.unpack(batch.data) for batch in batches]
    assert [h.base_sequence for h in headers] == [3, 6, 9, 12, 15]
    assert {(h.producer_id, h.producer_epoch) for h in headers} == {(7, 2)}


def test_a_retry_sends_the_same_bytes():
    """A retried batch is byte for byte the same."""
    lane = queue()
    first = send(lane)
    before = first.data
    lane.settle(first, refusal(19), 0.0)
    again = send(lane, now=1.0)
    assert again.data is before


def test_pauses_grow_until_something_is_acknowledged():
    """Then the next failure begins with a short pause again."""
    lane = queue()
    pauses = []
    for _ in range(8):
        now = lane.pause_until
        lane.settle(send(lane, now), refusal(19), now)
        pauses.append(lane.pause_until - now)
    assert pauses[-1] > 10 * FIRST_PAUSE > pauses[0]
    now = lane.pause_until
    lane.settle(send(lane, now), Ack(100), now)
    lane.settle(send(lane, now), refusal(19), now)
    assert lane.pause_until - now <= FIRST_PAUSE


def test_an_unread_source_is_not_read_ahead_of_the_window():
    """A lazy source of batches is read only as far as it can be sent."""
    taken = []

    def source():
        for n in range(100):
            taken.append(n)
            yield sealed()

    lane = PartitionQueue(WHERE, IDENTITY, source(), 0, 120.0)
    lane.settle(send(lane), Ack(0), 0.0)
    send_all(lane)
    assert len(taken) == 1 + MAX_IN_FLIGHT


def test_out_of_order_behind_a_failed_batch_is_expected():
    """Only the first unacknowledged batch decides: a 45 after a retriable failure is retried, not fatal."""
    lane = proven()
    window = send_all(lane)
    lane.settle(window[0], refusal(19), 0.0)
    for batch in window[1:]:
        lane.settle(batch, refusal(45), 0.0)
    assert send(lane, now=5.0) is window[0]


def test_out_of_order_at_the_first_unacknowledged_batch_is_fatal():
    """A 45 without an earlier failure means a second attempt, or lost broker state."""
    lane = proven()
    window = send_all(lane)
    with pytest.raises(ProtocolViolation, match=r"out-3 \(sequence 3.*OUT_OF_ORDER|out-3.*error 45"):
        lane.settle(window[0], refusal(45), 0.0)


def test_an_error_that_arrives_early_decides_when_it_is_its_turn():
    """A later batch's fatal error counts once everything before it is acknowledged."""
    lane = proven()
    first, second, *_ = send_all(lane)
    lane.settle(second, refusal(45), 0.0)
    with pytest.raises(ProtocolViolation, match="sequence 6"):
        lane.settle(first, Ack(103), 0.0)


def test_nothing_new_is_sent_behind_a_failure():
    """While a failed batch waits for its turn the window does not grow."""
    lane = proven(batches=20)
    window = send_all(lane)
    lane.settle(window[2], refusal(19), 0.0)
    lane.settle(window[0], Ack(103), 0.0)
    assert lane.next_batch(0.0) is None


def test_a_window_is_repeated_only_when_all_of_it_has_answered():
    """A retry cannot overtake requests that are still in flight."""
    lane = proven()
    window = send_all(lane)
    lane.settle(window[0], refusal(6), 0.0)
    assert lane.next_batch(9.0) is None
    for batch in window[1:]:
        lane.settle(batch, refusal(45), 9.0)
    assert send(lane, now=19.0) is window[0]


def test_after_a_failure_one_batch_goes_ahead_alone():
    """The first retry is acknowledged before the rest follows, in order."""
    lane = proven()
    window = send_all(lane)
    for batch in window:
        lane.settle(batch, refusal(6), 0.0)
    head = send(lane, now=5.0)
    assert head is window[0]
    assert lane.next_batch(5.0) is None
    lane.settle(head, Ack(103), 5.0)
    assert send_all(lane, now=5.0)[:4] == window[1:]


def test_an_acknowledged_batch_behind_a_failed_one_is_not_repeated():
    """Answered REQUEST_TIMED_OUT but written: the batches after it stay acknowledged."""
    lane = proven(batches=3)
    first, second = send_all(lane)
    lane.settle(first, refusal(7), 0.0)
    lane.settle(second, Ack(106), 0.0)
    again = send(lane, now=5.0)
    assert again is first
    lane.settle(again, Ack(103), 5.0)
    assert lane.finished
    assert lane.receipt.last_offset == 108


def test_a_failed_batch_waits_before_it_is_repeated():
    """Pauses grow from at most 20 ms to at most 1 s."""
    lane = queue()
    now = 0.0
    pauses = []
    for _ in range(12):
        batch = send(lane, now)
        lane.settle(batch, refusal(19), now)
        assert lane.next_batch(now) is None
        pauses.append(lane.pause_until - now)
        now = lane.pause_until
    assert pauses[0] <= 0.02
    assert 0.5 <= pauses[-1] <= 1.0


def test_delivery_times_out_naming_partition_and_last_error():
    """A batch that is refused for longer than the delivery time-out ends the send."""
    lane = queue(delivery_timeout=10.0)
    batch = send(lane, 0.0)
    lane.settle(batch, refusal(19), 5.0)
    batch = send(lane, 6.0)
    with pytest.raises(DeliveryTimedOut, match=r"out-3: .* within 10 s.*error 19"):
        lane.settle(batch, refusal(19), 10.0)


def test_progress_starts_the_delivery_timeout_again():
    """The time-out applies to the first unacknowledged batch, not to the partition."""
    lane = queue(delivery_timeout=10.0)
    lane.settle(send(lane, 0.0), Ack(100), 9.0)
    batch = send(lane, 9.0)
    lane.settle(batch, refusal(19), 15.0)
    assert send(lane, 17.0) is batch


def test_a_partition_without_a_leader_times_out():
    """Also a batch that could never be sent counts against the delivery time-out."""
    lane = queue(delivery_timeout=10.0)
    assert lane.next_batch(0.0) is not None
    lane.no_leader(0.0)
    with pytest.raises(DeliveryTimedOut, match="no leader"):
        lane.no_leader(10.0)


def test_an_acknowledgement_below_the_end_before_is_another_attempts():
    """A broker that acknowledges a known sequence returns the old offset: our batch is not written."""
    lane = queue(end_before=100)
    with pytest.raises(DuplicateReceipt, match="offset 99, below 100"):
        lane.settle(send(lane), Ack(99), 0.0)


def test_acknowledged_offsets_must_rise():
    """A batch acknowledged at or below its predecessor was not written by this task."""
    lane = proven()
    batch = send(lane)
    with pytest.raises(DuplicateReceipt, match="not behind 102"):
        lane.settle(batch, Ack(102), 0.0)


def test_acknowledgements_out_of_order_are_counted_in_order():
    """The receipt follows the order of the batches, not that of the answers."""
    lane = proven(batches=3)
    first, second = send_all(lane)
    lane.settle(second, Ack(110), 0.0)
    assert lane.receipt.records == 3
    lane.settle(first, Ack(103), 0.0)
    size = lane.receipt.size
    assert lane.receipt == PartitionReceipt("out", 3, 100, 112, 9, size, 3, 8)
    assert size > 0


def test_a_fence_ends_the_lane_with_its_own_error():
    """Code 47 at the first unacknowledged batch is ProducerFenced."""
    lane = proven()
    batch = send(lane)
    with pytest.raises(ProducerFenced):
        lane.settle(batch, refusal(47), 0.0)


def test_connection_errors_are_repeated():
    """A lost connection proves nothing about the batch: the same bytes are sent again."""
    lane = queue()
    batch = send(lane)
    lane.settle(batch, Refusal(Retry("connection", refresh=True), "KafkaConnectionError"), 0.0)
    assert send(lane, 1.0) is batch


def test_an_empty_source_gives_an_empty_receipt():
    """A partition without batches is finished at once, with offsets and sequence -1."""
    lane = PartitionQueue(WHERE, IDENTITY, iter([]), 100, 120.0)
    assert lane.finished
    assert lane.receipt == PartitionReceipt("out", 3, -1, -1, 0, 0, 0, -1)


def test_the_record_count_must_be_the_batchs_own():
    """A count that differs from the sealed batch is found before anything is sent."""
    records, data = sealed()
    lane = PartitionQueue(WHERE, IDENTITY, iter([(records + 1, data)]), 0, 120.0)
    with pytest.raises(ProtocolViolation, match="does not hold the 4 records"):
        lane.next_batch(0.0)


def test_bytes_that_are_no_batch_are_refused():
    """They are shorter than a batch header."""
    lane = PartitionQueue(WHERE, IDENTITY, iter([(1, b"x" * 10)]), 0, 120.0)
    with pytest.raises(ProtocolViolation, match="10 bytes"):
        lane.next_batch(0.0)


def test_sequences_wrap_as_the_broker_counts():
    """0 follows 2^31 - 1."""
    lane = queue(batches=2)
    lane._next_sequence = 2**31 - 2
    lane.settle(send(lane), Ack(100), 0.0)
    assert send(lane).base_sequence == 1
    assert lane.receipt.last_sequence == 0
