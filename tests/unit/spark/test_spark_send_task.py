"""The send task: law 1, the order of batches, and one receipt per target partition."""

from __future__ import annotations

import json
import re
import time
import tracemalloc

import pyarrow as pa
import pytest

from airflow_eos.exceptions import (
    DeliveryTimedOut,
    DuplicateReceipt,
    ProducerFenced,
    ProtocolViolation,
    SealedBlockLost,
    SecondAttempt,
    SendError,
)
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.output import PartitionReceipt, SealedManifest, SealedTarget
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.spark import send_task as send_module
from airflow_eos.spark.errors import error_to_dict
from airflow_eos.spark.sealed_rows import SCHEMA
from airflow_eos.spark.send_task import SendTask, gather, read_answers, refuse_second_attempt
from airflow_eos.wire.client_config import ClientConfig

IDENTITY = ProducerIdentity("eos.g", 7, 2)
CONFIG = ClientConfig.of({"bootstrap.servers": "nowhere:1", "sasl.password": "TOPSECRET"})


ATTEMPTS = {seal_partition: 100 + seal_partition for seal_partition in range(11)}


def rows(*given, attempts=ATTEMPTS):
    """Rows (topic, partition, seal_partition, seq, records, bytes) as an Arrow batch."""
    topic, partition, seal_partition, *rest = zip(*given, strict=True)
    order = [[0] * len(given), topic, partition, seal_partition, [attempts[s] for s in seal_partition], *rest]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, t) for c, t in zip(order, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def send_task(expected=None, **changes):
    settings = {"delivery_timeout": 5.0, "timeout": 60.0, **changes}
    return SendTask(CONFIG, IDENTITY, expected or {}, ATTEMPTS, **settings)


class FakeContext:
    def __init__(self, attempt=0):
        self._attempt = attempt

    def attemptNumber(self):  # noqa: N802 - Spark's name
        return self._attempt

    def partitionId(self):  # noqa: N802
        return 3


@pytest.fixture
def attempt(monkeypatch):
    """Set the attempt number that TaskContext shows."""
    from pyspark import TaskContext

    def set_attempt(number):
        monkeypatch.setattr(TaskContext, "get", classmethod(lambda cls: FakeContext(number)))

    return set_attempt


class FakeWire:
    """Replaces the connections and send_partitions; records what was written."""

    def __init__(self, monkeypatch, error=None):
        self.written = {}
        self.error = error
        monkeypatch.setattr(send_module, "BrokerConnections", self.connections)
        monkeypatch.setattr(send_module, "send_partitions", self.send)

    def connections(self, config, **_):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def send(self, connections, identity, batches, *, delivery_timeout, timeout):
        if self.error is not None:
            raise self.error
        receipts = []
        for place, blocks in batches.items():
            self.written[place] = list(blocks)
            records = sum(n for n, _ in self.written[place])
            receipts.append(receipt(place.topic, place.partition, records, len(self.written[place])))
        return receipts


def receipt(topic, partition, records, batches=1):
    return PartitionReceipt(topic, partition, 100, 99 + records, records, 1000, batches, records - 1)


def answers(task, *batches):
    return [a for out in task(iter(batches)) for a in out.column("answer").to_pylist()]


def test_batches_are_written_in_the_order_of_seal_task_and_number(monkeypatch, attempt):
    """That is the order of the source, whatever order the shuffle delivers."""
    attempt(0)
    wire = FakeWire(monkeypatch)
    out = TopicPartition("out", 0)
    shuffled = [
        rows(("out", 0, 2, 0, 1, b"2-0"), ("out", 0, 0, 1, 1, b"0-1"), ("out", 0, 10, 0, 1, b"10-0")),
        rows(("out", 0, 0, 0, 1, b"0-0"), ("out", 0, 0, 2, 1, None), (None, -1, 0, 1, 2, None)),
    ]
    (answer,) = answers(send_task({out: (4, 4)}), *shuffled)
    assert [data for _, data in wire.written[out]] == [b"0-0", b"0-1", b"2-0", b"10-0"]
    assert json.loads(answer)["receipt"]["records"] == 4


def test_a_streamed_task_writes_partition_after_partition(monkeypatch, attempt):
    """Spark has sorted the rows, so the task does not buffer them."""
    attempt(0)
    wire = FakeWire(monkeypatch)
    places = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    taken = []

    def batches():
        yield rows((None, -1, 0, 1, 2, None))
        for place in places:
            taken.append((place, len(wire.written)))
            given = [(place.topic, place.partition, i // 2, i % 2, 1, b"%d" % i) for i in range(4)]
            yield rows(*given, (place.topic, place.partition, 1, 2, 2, None))

    task = send_task(dict.fromkeys(places, (4, 4)), streamed=True)
    receipts = [json.loads(a)["receipt"] for out in task(batches()) for a in out.column("answer").to_pylist()]
    assert [(r["topic"], r["partition"], r["records"]) for r in receipts] == [
        ("a", 0, 4),
        ("a", 1, 4),
        ("b", 0, 4),
    ]
    assert all([d for _, d in wire.written[place]] == [b"0", b"1", b"2", b"3"] for place in places)
    # A partition's rows are requested once the one before is written, apart from the one in hand.
    assert [count for _, count in taken] == [0, 0, 1]


@pytest.mark.parametrize(
    "given",
    [
        [("a", 0, 1, 0, 1, b"x"), ("a", 0, 0, 0, 1, b"x")],
        [("a", 0, 0, 0, 1, b"x"), ("a", 0, 0, 0, 1, b"x")],
        [("a", 0, 0, 0, 1, b"x"), ("a", 1, 0, 0, 1, b"x"), ("a", 0, 0, 1, 1, b"x")],
    ],
)
def test_a_streamed_task_refuses_rows_in_another_order(monkeypatch, attempt, given):
    """The order within a partition is guaranteed, and sequences would repeat."""
    attempt(0)
    FakeWire(monkeypatch)
    expected = {TopicPartition("a", 0): (2, 2), TopicPartition("a", 1): (1, 1)}
    if len(given) == 3:
        expected[TopicPartition("a", 0)] = (1, 1)
    replies = answers(send_task(expected, streamed=True), rows(*given))
    with pytest.raises(ProtocolViolation):
        read_answers(replies, SealedManifest(()))


def test_a_streamed_task_tells_when_the_manifest_is_not_met(monkeypatch, attempt):
    """It knows the counts only after writing, so the run must abort."""
    attempt(0)
    FakeWire(monkeypatch)
    replies = answers(
        send_task({TopicPartition("a", 0): (2, 2)}, streamed=True), rows(("a", 0, 0, 0, 1, b"x"))
    )
    with pytest.raises(ProtocolViolation, match="must abort"):
        read_answers(replies, SealedManifest(()))


def test_a_second_attempt_writes_nothing_and_raises(monkeypatch, attempt):
    """Law 1: a broker would acknowledge other content under a known sequence."""
    attempt(1)
    wire = FakeWire(monkeypatch)
    task = send_task({TopicPartition("out", 0): (1, 1)}, second_attempt_wait=0.05)
    begun = time.monotonic()
    with pytest.raises(Exception, match="SecondAttempt"):
        answers(task, rows(("out", 0, 0, 0, 1, b"x")))
    assert time.monotonic() - begun >= 0.05
    assert wire.written == {}


def test_a_second_attempt_waits_first():
    """A speculative copy is killed when the first attempt ends: raising at once could end the job before."""
    begun = time.monotonic()
    with pytest.raises(SecondAttempt, match="attempt 1"):
        refuse_second_attempt(3, 1, 0.1)
    assert time.monotonic() - begun >= 0.1


@pytest.mark.parametrize("error", [ProducerFenced("47"), ValueError("a bug")])
def test_a_failed_first_attempt_answers_instead_of_raising(monkeypatch, attempt, error):
    """Raising would make Spark start a second attempt."""
    attempt(0)
    FakeWire(monkeypatch, error)
    replies = answers(send_task({TopicPartition("out", 0): (1, 1)}), rows(("out", 0, 0, 0, 1, b"x")))
    manifest = SealedManifest((SealedTarget("out", 0, 1, 1, 1),))
    with pytest.raises(
        ProducerFenced if isinstance(error, ProducerFenced) else SendError, match=re.escape(str(error))
    ):
        read_answers(replies, manifest)


def test_blocks_that_differ_from_the_manifest_are_not_written(monkeypatch, attempt):
    """The check precedes the first byte."""
    attempt(0)
    wire = FakeWire(monkeypatch)
    replies = answers(send_task({TopicPartition("out", 0): (2, 2)}), rows(("out", 0, 0, 0, 1, b"x")))
    with pytest.raises(ProtocolViolation, match="manifest"):
        read_answers(replies, SealedManifest((SealedTarget("out", 0, 2, 2, 1),)))
    assert wire.written == {}


def test_rows_of_another_seal_attempt_are_not_written(monkeypatch, attempt):
    """The manifest counted one copy of a block, and Spark gave the send another one; all counts match."""
    attempt(0)
    wire = FakeWire(monkeypatch)
    given = [("out", 0, 0, 0, 1, b"x"), ("out", 0, 1, 0, 1, b"y")]
    batches = [rows(given[0]), rows(given[1], attempts={1: 999})]
    replies = answers(send_task({TopicPartition("out", 0): (2, 2)}), *batches)
    with pytest.raises(SealedBlockLost, match=r"seal task 1 are of attempt 999, .* of attempt 101"):
        read_answers(replies, SealedManifest((SealedTarget("out", 0, 2, 2, 1),)))
    assert wire.written == {}


def test_an_owner_that_holds_only_trailers_of_another_attempt_says_so(monkeypatch, attempt):
    """Its batches went elsewhere: this also means another copy, and requires a new seal."""
    attempt(0)
    FakeWire(monkeypatch, AssertionError("must not connect"))
    replies = answers(send_task(), rows((None, -1, 0, 0, 0, None), attempts={0: 999}))
    with pytest.raises(SealedBlockLost, match="attempt 999"):
        read_answers(replies, SealedManifest((SealedTarget("out", 0, 2, 2, 1),)))


def test_a_streamed_task_ends_at_rows_of_another_seal_attempt(monkeypatch, attempt):
    """What was written before them is aborted; their partition gets no receipt."""
    attempt(0)
    wire = FakeWire(monkeypatch)
    first, second = TopicPartition("a", 0), TopicPartition("b", 0)
    batches = [
        rows(("a", 0, 0, 0, 1, b"x"), ("a", 0, 1, 0, 1, b"y")),
        rows(("b", 0, 0, 0, 1, b"x")),
        rows(("b", 0, 1, 0, 1, b"y"), attempts={1: 999}),
    ]
    task = send_task(dict.fromkeys((first, second), (2, 2)), streamed=True)
    replies = answers(task, *batches)
    assert len(replies) == 1
    with pytest.raises(SealedBlockLost, match="seal task 1 are of attempt 999"):
        read_answers(replies, SealedManifest(()))
    assert sorted(wire.written) == [first]


def test_a_task_without_batches_answers_nothing(monkeypatch, attempt):
    """It owns partitions that got no record."""
    attempt(0)
    FakeWire(monkeypatch, AssertionError("must not connect"))
    assert answers(send_task(), rows((None, -1, 0, 0, 0, None))) == []


def test_receipts_come_back_sorted():
    """In whatever order the tasks finish."""
    replies = [json.dumps({"receipt": receipt("out", p, 5).to_dict()}) for p in (2, 0, 1)]
    manifest = SealedManifest(tuple(SealedTarget("out", p, 5, 1, 1) for p in range(3)))
    assert [r.partition for r in read_answers(replies, manifest)] == [0, 1, 2]


def test_two_receipts_for_one_partition_are_refused():
    """Two tasks wrote it: content is unknown."""
    replies = [json.dumps({"receipt": receipt("out", 0, 5).to_dict()})] * 2
    with pytest.raises(DuplicateReceipt, match="out-0"):
        read_answers(replies, SealedManifest((SealedTarget("out", 0, 5, 1, 1),)))


def test_a_missing_receipt_is_an_error():
    """A partial write must not commit."""
    manifest = SealedManifest(tuple(SealedTarget("out", p, 5, 1, 1) for p in range(2)))
    with pytest.raises(SendError, match="out-1"):
        read_answers([json.dumps({"receipt": receipt("out", 0, 5).to_dict()})], manifest)


def test_the_cause_is_shown_rather_than_what_other_tasks_saw_of_it():
    """Many tasks are fenced because one was late."""
    replies = [
        json.dumps({"error": error_to_dict(e)}) for e in (ProducerFenced("47"), DeliveryTimedOut("slow"))
    ]
    with pytest.raises(DeliveryTimedOut, match="slow"):
        read_answers(replies, SealedManifest(()))


@pytest.mark.parametrize("ahead", [280.0, -280.0])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_wrong_clock_neither_shortens_nor_lengthens_a_task(monkeypatch, attempt, ahead, streamed):
    """The task gets the seconds that the driver had left, whatever its host's clock says."""
    attempt(0)
    wire, given = FakeWire(monkeypatch), []
    send = wire.send

    def timed(*arguments, timeout, **more):
        given.append(timeout)
        return send(*arguments, timeout=timeout, **more)

    monkeypatch.setattr(send_module, "send_partitions", timed)
    task = send_task({TopicPartition("out", 0): (1, 5)}, timeout=60.0, streamed=streamed)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    assert "receipt" in answers(task, rows(("out", 0, 0, 0, 5, b"x")))[0]
    assert 55 < given[0] <= 60


def test_bytes_stay_in_arrow_until_they_are_sent():
    """Collecting them copies no batch."""
    size = 1_000_000
    batch = rows(("out", 0, 0, 0, 1, b"x" * size))
    before = pa.total_allocated_bytes()
    # tracemalloc counts Python's memory, not Arrow's.
    tracemalloc.start()
    try:
        (pieces,) = gather([batch], ATTEMPTS).values()
        _, python = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < size / 2
    assert python < size / 2
    assert pieces[0].sealed() == (1, b"x" * size)


def test_secrets_are_not_in_the_tasks_repr():
    """A task's repr, which logs show, has no credential."""
    assert "TOPSECRET" not in repr(send_task())
