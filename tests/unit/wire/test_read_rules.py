"""Reading against scripted leaders: every answer that a broker may give, and its effect."""

from __future__ import annotations

from types import SimpleNamespace

import kafka.errors as kafka_errors
import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    BrokerUnsupported,
    CorruptBatch,
    FetchStalled,
    OffsetsOutOfRange,
)
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.header import BatchHeader
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.recordbatch.stamp import stamp
from airflow_eos.wire.error_codes import FETCH, Fatal, Retry
from airflow_eos.wire.fetch import fetch_answers
from airflow_eos.wire.offsets import list_offsets, max_timestamps
from tests.support.wire_requests import fetch_range
from tests.unit.wire.fakes import FakeConnections, as_usual, kind_of

WHERE = TopicPartition("src", 0)


def logged(base_offset, records):
    """A batch in the form that the log has."""
    values = pa.array([b"%d" % (base_offset + n) for n in range(records)], pa.binary())
    (batch,) = seal(values, np.zeros(records, np.int32), topic="src", compressor="none")
    return base_offset.to_bytes(8, "big") + stamp(batch.data, 1, 0, 0)[8:]


class FakeLeader(FakeConnections):
    """One partition's log: batches of ten records; Fetch answers hold at most ``per_answer`` of them."""

    def __init__(self, batches=10, per_answer=2):
        super().__init__({WHERE: 0, TopicPartition("src", 1): 1})
        self.log = [logged(10 * n, 10) for n in range(batches)]
        self.per_answer = per_answer
        self.end = self.stable = 10 * batches
        self.start = 0
        self.local_start = 0
        self.throttle_ms = 0

    def scripted(self, request):
        return bool(self.script) and kind_of(request) == "Fetch"

    @property
    def positions(self):
        """Return the offsets that were fetched, in order."""
        return [
            request.topics[0].partitions[0].fetch_offset
            for _, request in self.requests
            if kind_of(request) == "Fetch"
        ]

    def handle(self, request, node):
        if kind_of(request) == "ListOffsets":
            return self.offsets(request)
        position = request.topics[0].partitions[0].fetch_offset
        batches = [data for data in self.log if BatchHeader.unpack(data).next_offset > position]
        return self.fetched(b"".join(batches[: self.per_answer]))

    def fetched(self, records=b"", code=0, **fields):
        part = {
            "error_code": code,
            "records": records,
            "high_watermark": self.end,
            "last_stable_offset": self.end,
            "log_start_offset": self.start,
            "aborted_transactions": None,
            **fields,
        }
        topic = SimpleNamespace(topic="src", partitions=[SimpleNamespace(**part)])
        return SimpleNamespace(error_code=0, throttle_time_ms=self.throttle_ms, responses=[topic])

    def offsets(self, request):
        latest = self.stable if request.isolation_level else self.end
        answer = {-1: latest, -2: self.start, -3: latest - 1, -4: self.local_start}
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    partitions=[
                        SimpleNamespace(
                            partition_index=p.partition_index,
                            error_code=0,
                            offset=answer[p.timestamp],
                            timestamp=-1,
                            leader_epoch=0,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def refuse(self, code):
        self.script.append(lambda *_: self.fetched(code=code, log_start_offset=-1))


@pytest.fixture
def leader():
    fake = FakeLeader()
    yield fake
    fake.close()


def offsets_of(leader, start=0, end=100, **options):
    return [int(o) for batch in fetch_range(leader, "src", 0, start, end, **options) for o in batch.offset]


def test_answers_follow_each_other(leader):
    """The next position is after the last whole batch."""
    assert offsets_of(leader) == list(range(100))
    assert leader.positions == [0, 20, 40, 60, 80]


def test_the_next_answer_is_asked_for_before_this_one_is_decoded(leader):
    """Decoding and waiting overlap."""
    answers = fetch_answers(leader, TopicPartition("src", 0), 0, 100)
    next(answers)
    assert leader.positions == [0, 20]


def test_nothing_is_asked_behind_the_end(leader):
    """No request follows the last answer."""
    assert offsets_of(leader, 0, 35) == list(range(35))
    assert leader.positions == [0, 20]


def test_a_batch_that_is_cut_off_is_asked_for_again(leader):
    """A broker truncates its answer at a number of bytes."""
    leader.script.append(lambda *_: leader.fetched(leader.log[0] + leader.log[1][:-5]))
    assert offsets_of(leader) == list(range(100))
    assert leader.positions[:2] == [0, 10]


@pytest.mark.parametrize("code", sorted(code for code, d in FETCH.items() if isinstance(d, Retry)))
def test_every_retriable_code_is_survived(leader, code):
    """Refused in the middle: the read continues at its position, at a new leader if the code says so."""
    leader.script.append(as_usual)
    leader.refuse(code)
    assert offsets_of(leader) == list(range(100))
    assert (leader.forgotten == ["src"]) is FETCH[code].refresh


@pytest.mark.parametrize(
    "code", sorted(code for code, d in FETCH.items() if isinstance(d, Fatal) and code != 1)
)
def test_every_fatal_code_ends_the_read(leader, code):
    """The table's error, with the partition's name, ends the read."""
    leader.refuse(code)
    with pytest.raises(FETCH[code].error, match="src-0"):
        offsets_of(leader)


def test_an_answer_without_the_partition_is_a_throttle(leader):
    """Brokers answer so if a client has used up its quota: it retries after the time that they give."""
    leader.script += [as_usual, lambda *_: SimpleNamespace(error_code=0, throttle_time_ms=1, responses=[])]
    assert offsets_of(leader) == list(range(100))
    assert leader.positions[:3] == [0, 20, 20]


@pytest.mark.parametrize(
    "error",
    [kafka_errors.KafkaConnectionError("gone"), kafka_errors.NodeNotReadyError("paused"), OSError("reset")],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_connection_is_survived(leader, error):
    """The leader is looked up again, and the same offset is requested."""
    leader.script.append(lambda *_: error)
    assert offsets_of(leader) == list(range(100))
    assert leader.positions[:2] == [0, 0]
    assert leader.forgotten == ["src"]


def test_an_unsupported_version_is_not_retried(leader):
    """The broker is too old, or too new."""
    leader.script.append(lambda *_: kafka_errors.IncompatibleBrokerVersion("Fetch"))
    with pytest.raises(BrokerUnsupported, match="src-0"):
        offsets_of(leader)


def test_an_offset_below_the_log_start_is_an_error(leader):
    """OFFSET_OUT_OF_RANGE with a log start above the position: both are named."""
    leader.start = 37
    leader.refuse(1)
    with pytest.raises(OffsetsOutOfRange, match="begins at offset 37, above the requested 5"):
        offsets_of(leader, 5)


def test_an_offset_above_the_log_end_is_an_error(leader):
    """OFFSET_OUT_OF_RANGE with a log end below the position."""
    leader.refuse(1)
    with pytest.raises(OffsetsOutOfRange, match="ends at offset 100, below the requested 500"):
        offsets_of(leader, 500, 501)


def test_out_of_range_within_the_log_is_a_new_leaders_doubt(leader):
    """Leaders say it is in range, even with an open transaction: the read retries, and never resets."""
    leader.stable = 3
    leader.refuse(1)
    assert offsets_of(leader, 5) == list(range(5, 100))


def test_a_log_start_that_has_passed_the_position_is_an_error(leader):
    """Even if the broker still answers with records after the gap."""
    leader.script.append(lambda *_: leader.fetched(leader.log[3], log_start_offset=30))
    with pytest.raises(OffsetsOutOfRange, match="begins at offset 30, above the requested 0"):
        offsets_of(leader)


def test_a_log_start_behind_the_position_is_no_loss(leader):
    """Records that were read already may be deleted."""
    leader.script.append(as_usual)
    leader.script.append(lambda *_: leader.fetched(leader.log[2], log_start_offset=15))
    assert offsets_of(leader) == list(range(100))


def test_an_answer_that_does_not_reach_the_position_is_refused(leader):
    """Otherwise the read would loop for ever."""
    leader.script.append(lambda *_: leader.fetched(leader.log[0]))
    with pytest.raises(CorruptBatch, match="asked for offset 50"):
        offsets_of(leader, 50)


def test_bytes_without_a_whole_batch_are_refused(leader):
    """The first batch of an answer is always whole (KIP-74)."""
    leader.script.append(lambda *_: leader.fetched(leader.log[0][:-1]))
    with pytest.raises(CorruptBatch, match="without one whole batch"):
        offsets_of(leader)


def test_a_damaged_batch_names_its_place(leader):
    """Topic, partition and offset."""
    damaged = leader.log[3][:-1] + b"\xff"
    leader.script.append(lambda *_: leader.fetched(damaged))
    with pytest.raises(CorruptBatch, match=r"src-0 at offset 30"):
        offsets_of(leader, 30)


def test_an_empty_answer_below_the_end_is_waited_for(leader):
    """A transaction is open: the read retries until the last stable offset has moved."""
    for _ in range(3):
        leader.script.append(lambda *_: leader.fetched(last_stable_offset=0))
    assert offsets_of(leader) == list(range(100))
    assert leader.positions[:4] == [0, 0, 0, 0]


def test_waiting_ends_with_the_stall_timeout(leader, clock):
    """The error has the position, the end, and the cause."""

    def not_yet(*_):
        clock.now += 0.25
        return leader.fetched(last_stable_offset=7)

    leader.script += [not_yet] * 100
    with pytest.raises(FetchStalled, match=r"offset 0 \(the end is 100\).*last stable offset.* is 7"):
        offsets_of(leader, stall_timeout=1.0)
    assert leader.positions == [0, 0, 0, 0]


def test_a_leader_that_stays_away_ends_with_the_stall_timeout(leader):
    """There is no leader at all."""
    leader.leaders[WHERE] = None
    with pytest.raises(FetchStalled, match="src-0 has no leader"):
        offsets_of(leader, stall_timeout=0.2)


def test_progress_starts_the_stall_timeout_again(leader, clock):
    """A slow read is not a stall: the time-out applies to each answer."""

    def slow(*_):
        # A refusal: the time-out is checked only after one.
        clock.now += 0.3
        return leader.fetched(code=7, log_start_offset=-1)

    leader.script += [slow, as_usual] * 5
    assert offsets_of(leader, stall_timeout=0.4) == list(range(100))
    assert leader.positions == [0, 0, 20, 20, 40, 40, 60, 60, 80, 80]


def test_a_slow_consumer_is_no_stall(leader, clock):
    """A request that is lost while the caller processes an answer is retried, however long that took."""
    leader.script += [as_usual, lambda *_: kafka_errors.RequestTimedOutError("nobody drove the loop")]
    got = []
    for batch in fetch_range(leader, "src", 0, 0, 100, stall_timeout=0.2):
        got += batch.offset.tolist()
        if len(got) == 20:
            clock.now += 0.4
    assert got == list(range(100))


def test_a_read_may_be_given_up(leader):
    """Requests in flight do no harm when the connections are closed."""
    reader = fetch_range(leader, "src", 0, 0, 100)
    # The small batches of one answer arrive together.
    assert next(reader).offset.tolist() == list(range(20))
    reader.close()


def test_an_empty_tail_of_the_local_log_is_finished(leader):
    """Compaction has removed everything up to the end: the read returns no records, and does not wait."""
    leader.log = leader.log[:5]
    assert offsets_of(leader) == list(range(50))
    assert leader.positions[-1] == 50


def test_the_highest_timestamp_of_local_segments_proves_nothing(leader):
    """Records that only remote storage has may be newer."""
    assert max_timestamps(leader, [WHERE]) == {WHERE: -1}
    leader.local_start = 20
    assert max_timestamps(leader, [WHERE]) == {}


def test_an_empty_answer_from_remote_storage_proves_nothing(leader):
    """A remote read may return nothing in time: the read retries."""
    leader.local_start = 80
    leader.script += [lambda *_: leader.fetched()] * 3
    assert offsets_of(leader) == list(range(100))


def test_an_empty_answer_of_a_throttled_broker_proves_nothing(leader):
    """A throttled client gets empty answers: the read retries."""
    leader.throttle_ms = 10
    leader.script.append(lambda *_: leader.fetched())
    assert offsets_of(leader) == list(range(100))


def test_no_leader_is_allowed_to_name_a_follower(leader):
    """From version 11 on it may, with an empty answer (KIP-392): a whole range would be read as empty."""
    offsets_of(leader)
    assert {request._max_version for _, request in leader.requests if kind_of(request) == "Fetch"} == {10}


def test_a_record_of_an_aborted_transaction_is_left_out(leader):
    """The answer's own list of aborted transactions decides; read_uncommitted ignores it."""
    aborted = SimpleNamespace(producer_id=1, first_offset=0)
    leader.per_answer = 100
    leader.script.append(lambda *_: leader.fetched(b"".join(leader.log), aborted_transactions=[aborted]))
    assert offsets_of(leader) == []
    leader.script.append(lambda *_: leader.fetched(b"".join(leader.log), aborted_transactions=[aborted]))
    assert offsets_of(leader, isolation="read_uncommitted") == list(range(100))


@pytest.mark.parametrize(("isolation", "level"), [("read_committed", 1), ("read_uncommitted", 0)])
def test_the_isolation_level_is_sent(leader, isolation, level):
    """Brokers use it, too: it limits answers, and the end of the log, to the last stable offset."""
    offsets_of(leader, isolation=isolation)
    list_offsets(leader, [WHERE], "latest", isolation=isolation)
    assert {(kind_of(request), request.isolation_level) for _, request in leader.requests} == {
        ("Fetch", level),
        ("ListOffsets", level),
    }


def test_offsets_are_asked_of_every_leader_once(leader):
    """There is one request per broker."""
    other = TopicPartition("src", 1)
    assert list_offsets(leader, [WHERE, other], "latest") == {WHERE: 100, other: 100}
    assert [node for node, _ in leader.requests] == [0, 1]


def test_offsets_that_are_refused_are_asked_again(leader):
    """Only for the refused partition, at a leader that is looked up again."""
    usual = leader.offsets
    refused = []

    def sometimes(request):
        answer = usual(request)
        if not refused:
            refused.append(True)
            answer.topics[0].partitions[0].error_code = 6
        return answer

    leader.offsets = sometimes
    assert list_offsets(leader, [WHERE, TopicPartition("src", 1)], "latest")[WHERE] == 100
    assert [node for node, _ in leader.requests] == [0, 1, 0]
    assert leader.refreshes == 1


def test_offsets_whose_answer_is_lost_are_asked_again(leader):
    """The leader that hung up is looked up again, and the others' answers are kept."""
    usual, lost = leader.offsets, [kafka_errors.KafkaConnectionError("socket disconnected")]
    leader.offsets = lambda request: lost.pop() if lost else usual(request)
    assert list_offsets(leader, [WHERE, TopicPartition("src", 1)], "latest")[WHERE] == 100
    assert [node for node, _ in leader.requests] == [0, 1, 0]
    assert leader.refreshes == 1


def test_offsets_that_stay_refused_are_an_error(leader):
    """The error has the last reason."""

    def always(request):
        answer = FakeLeader.offsets(leader, request)
        answer.topics[0].partitions[0].error_code = 5
        return answer

    leader.offsets = always
    with pytest.raises(BrokersUnavailable, match=r"offsets of src-0 \(1 partitions\).*LEADER_NOT_AVAILABLE"):
        list_offsets(leader, [WHERE], "latest", timeout=0.2)


def test_what_is_waited_for_is_told_before_the_time_is_over(leader, clock, caplog):
    """Waits for the leaders of offsets, and of records, are logged with the last reason."""
    usual = leader.offsets

    def away(request):
        clock.now += 4.0
        answer = usual(request)
        answer.topics[0].partitions[0].error_code = 5 if clock.now < 1010.0 else 0
        return answer

    def refused(*_):
        clock.now += 4.0
        return leader.fetched(code=7, log_start_offset=-1)

    leader.offsets = away
    assert list_offsets(leader, [WHERE], "latest") == {WHERE: 100}
    leader.script += [refused, refused]
    assert offsets_of(leader) == list(range(100))
    assert [text.partition(", for up to")[0] for text in caplog.messages] == [
        "offsets of src-0 (1 partitions): still waiting (src-0: LEADER_NOT_AVAILABLE)",
        "reading src-0 at offset 0: still waiting (REQUEST_TIMED_OUT)",
    ]


def test_offsets_that_may_not_be_seen_are_an_error(leader):
    """At once, with the partition's name."""

    def forbidden(request):
        answer = FakeLeader.offsets(leader, request)
        answer.topics[0].partitions[0].error_code = 29
        return answer

    leader.offsets = forbidden
    with pytest.raises(AuthorizationFailed, match="src-0"):
        list_offsets(leader, [WHERE], "latest")


def test_a_slow_network_gets_smaller_requests(leader):
    """An answer that does not arrive in time would not arrive when it is requested again, either."""
    sizes = []

    def answer(request, _node):
        leader.script.append(answer)
        sizes.append(request.max_bytes)
        return kafka_errors.RequestTimedOutError() if request.max_bytes > 1 << 20 else None

    leader.script.append(answer)
    assert offsets_of(leader, stall_timeout=1.0) == list(range(100))
    assert [size for size in sizes if size > 1 << 20] == [4 << 20]
