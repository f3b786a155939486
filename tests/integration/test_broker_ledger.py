"""The ledger topic on a real broker: creation, placement, and look-ups on both sides of the LSO."""

from __future__ import annotations

import random
import threading

import confluent_kafka
import pytest
from confluent_kafka.admin import ConfigResource

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.exceptions import BrokersUnavailable, LedgerMissing, LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.ledger_index import OwnKeys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ledger import LedgerEntry, LedgerValue
from airflow_eos.model.spec import LedgerSettings
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos_testing import read_topic
from tests.support.brokers import (
    QUIET,
    foreign_transaction,
    make_ledger,
    tp,
    unique,
    write,
)
from tests.support.ledger_values import text_of, texts
from tests.support.missing_topics import missing_at_once
from tests.support.patience import wait_until


@pytest.fixture
def settle(cluster, ledger):
    """Wait until the last stable offset has reached an offset: markers follow the answer to the commit."""

    def until(offset):
        partition = tp(ledger.topic)
        wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == offset)

    return until


@pytest.fixture
def as_written(embedded_kafka, config, link):
    """A ledger on a topic that keeps batches compressed: in ledgers of our making the broker unpacks them."""
    name = embedded_kafka.create_topic(unique("ledger"), config={"compression.type": "producer"})
    return make_ledger(config, link, name=name)


def committed(config, topic, *records):
    """One foreign transaction, committed: its records and one marker."""
    with foreign_transaction(config, topic, *records) as producer:
        producer.commit_transaction(30)


def aborted(config, topic, *records):
    with foreign_transaction(config, topic, *records) as producer:
        producer.abort_transaction(30)


# -- the topic --------------------------------------------------------------------------------------------


def test_a_missing_ledger_names_the_command_that_creates_it(config, link):
    """LedgerMissing says what to run."""
    ledger = KafkaLedger(link, LedgerSettings(topic=unique("missing")))
    with missing_at_once(), pytest.raises(LedgerMissing, match="python -m airflow_eos init"):
        ledger.describe()


def test_a_missing_ledger_is_waited_for_once(config, link, monkeypatch):
    """Before the first run there is none: a command that needs it several times waits only once."""
    waits = []
    topics = BrokerConnections.topics

    def listed(connections, names, *, wait=True):
        waits.append(wait)
        return topics(connections, names, wait=wait)

    monkeypatch.setattr(BrokerConnections, "topics", listed)
    ledger = KafkaLedger(link, LedgerSettings(topic=unique("missing"), partitions=1))
    for _ in range(3):
        with pytest.raises(LedgerMissing):
            ledger.describe()
    assert waits == [True, False, False]
    ledger.create()
    waits.clear()
    ledger.describe()
    assert waits == [True]


def test_a_new_ledger_is_compacted_and_never_expires(embedded_kafka, ledger):
    """Its settings are the ones that look-ups depend on."""
    resource = ConfigResource("topic", ledger.topic)
    settings = embedded_kafka.admin().describe_configs([resource])[resource].result()
    assert {name: settings[name].value for name in ("cleanup.policy", "message.timestamp.type")} == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
    }
    assert settings["compression.type"].value == "uncompressed"
    unclean = settings["unclean.leader.election.enable"]
    assert (unclean.value, unclean.is_default) == ("false", False)
    assert (settings["retention.ms"].value, settings["retention.bytes"].value) == ("-1", "-1")


def test_a_cluster_that_may_be_starting_is_not_refused_for_good(link):
    """Brokers that have not registered yet, or are all fenced after their controller was away, answer so.

    If there are no more brokers, the same error names the setting to change.
    """
    ledger = KafkaLedger(link, LedgerSettings(unique("early"), replication_factor=3))
    with pytest.raises(
        BrokersUnavailable, match=r"only 1 broker.*Retry when all .* have started.*LedgerSettings\("
    ):
        ledger.create()


def test_creating_twice_keeps_the_first(config, link):
    """Create is idempotent, also with other settings; every partition has a leader when it returns."""
    first = make_ledger(config, link, partitions=5)
    seen = first.describe()
    again = KafkaLedger(link, LedgerSettings(topic=first.topic, partitions=9))
    again.create()
    assert again.describe() == seen
    assert seen.partitions == 5


def test_the_partition_is_the_one_the_java_producer_would_choose(config, link):
    """Murmur2 of the routing string, as librdkafka's Java-compatible partitioner computes it."""
    ledger = make_ledger(config, link, partitions=7)
    routings = [f"pipeline-{i}" for i in range(50)] + ["ü", "日本", "x" * 200]
    producer = confluent_kafka.Producer({**config, **QUIET, "partitioner": "murmur2_random"})
    for routing in routings:
        producer.produce(ledger.topic, key=routing, value=b"")
    assert producer.flush(20) == 0
    chosen = {record.key.decode(): record.partition for record in read_topic(config, ledger.topic)}
    assert {routing: ledger.partition_for(routing) for routing in routings} == chosen


def test_the_empty_routing_string_belongs_to_partition_0(config, link):
    """Records about the ledger itself are found without knowing how many partitions it has."""
    assert KafkaLedger(link, LedgerSettings(topic=unique("missing"))).partition_for("") == 0
    assert make_ledger(config, link, partitions=7).partition_for("") == 0


# -- below the last stable offset -------------------------------------------------------------------------


def test_an_empty_partition_has_nothing(ledger):
    """A view of a new ledger is empty on both sides."""
    view = ledger.view(0, ["run"])
    assert (view.last_stable_offset, view.high_watermark, texts(view.committed), tuple(view.tail)) == (
        0,
        0,
        {},
        (),
    )


def test_the_latest_committed_value_counts(config, ledger, settle):
    """Also if the same answer has an older value of the key."""
    committed(config, ledger.topic, ("run", "1"), ("other", "x"))
    committed(config, ledger.topic, ("run", "2"))
    settle(5)
    view = ledger.view(0, ["run", "absent"])
    assert texts(view.committed) == {"run": "2"}
    assert (view.last_stable_offset, view.high_watermark, tuple(view.tail)) == (5, 5, ())


def test_aborted_records_are_not_committed(config, ledger, settle):
    """An aborted value neither counts nor hides the committed one before it."""
    aborted(config, ledger.topic, ("only-aborted", "x"))
    committed(config, ledger.topic, ("run", "good"))
    aborted(config, ledger.topic, ("run", "bad"), ("run", "worse"))
    settle(7)
    assert texts(ledger.view(0, ["run", "only-aborted"]).committed) == {"run": "good"}


def test_one_producer_may_abort_and_then_commit(config, ledger, settle):
    """Its abort covers its transaction up to the marker, not the next one."""
    with foreign_transaction(config, ledger.topic, ("run", "aborted")) as producer:
        producer.abort_transaction(30)
        producer.begin_transaction()
        write(producer, ledger.topic, ("run", "committed"))
        producer.commit_transaction(30)
        producer.begin_transaction()
        write(producer, ledger.topic, ("run", "aborted again"))
        producer.abort_transaction(30)
    settle(6)
    assert texts(ledger.view(0, ["run"]).committed) == {"run": "committed"}


def test_a_tombstone_removes_its_key(config, ledger, settle):
    """A committed record without a value takes the key out of the view; a later value brings it back."""
    committed(config, ledger.topic, ("run", "1"), ("back", "1"))
    committed(config, ledger.topic, ("run", None), ("back", None))
    committed(config, ledger.topic, ("back", "2"))
    settle(8)
    assert texts(ledger.view(0, ["run", "back"]).committed) == {"back": "2"}


def test_keys_are_compared_whole(config, ledger, settle):
    """Keys that begin alike, and values that contain the key, are other records."""
    key = "run/p/2026-11-21"
    committed(config, ledger.topic, (key, "yes"))
    committed(config, ledger.topic, (f"{key}T05", "longer"), ("other", f"\x20{key}"), (f"x{key}", "no"))
    settle(6)
    assert texts(ledger.view(0, [key]).committed) == {key: "yes"}


def test_keys_can_be_asked_for_by_their_beginning(config, ledger, settle):
    """Every committed key with the prefix, beside the exact keys; on both sides of the last stable offset."""
    committed(config, ledger.topic, ("boundary:a/1", "1"), ("boundary:ab/1", "x"), ("run", "r"))
    aborted(config, ledger.topic, ("boundary:a/2", "aborted"))
    committed(config, ledger.topic, ("boundary:a/3", "3"), ("boundary:a/1", "1 again"))
    settle(9)
    with foreign_transaction(config, ledger.topic, ("boundary:a/4", "open"), ("other", "x")) as foreign:
        view = ledger.view(0, ["run"], ["boundary:a/"])
        assert texts(view.committed) == {"boundary:a/1": "1 again", "boundary:a/3": "3", "run": "r"}
        assert [(entry.key, text_of(entry)) for entry in view.tail] == [("boundary:a/4", "open")]
        foreign.abort_transaction(30)


def test_long_keys_and_non_ascii_keys_are_found(config, ledger, settle):
    """From 64 bytes on, the length before a key takes two bytes."""
    keys = ["k" * 63, "k" * 64, "k" * 9000, "schlüssel/日本"]
    committed(config, ledger.topic, *((key, str(len(key))) for key in keys))
    settle(5)
    assert texts(ledger.view(0, keys).committed) == {key: str(len(key)) for key in keys}


def test_batches_of_a_stranger_that_compresses_are_read(config, cluster, as_written):
    """A search for bytes does not match in a compressed batch: it is decoded, committed or not."""
    ledger, partition = as_written, tp(as_written.topic)
    with foreign_transaction(
        {**config, "compression.type": "gzip"}, ledger.topic, ("run", "g" * 500)
    ) as producer:
        producer.commit_transaction(30)
    aborted({**config, "compression.type": "gzip"}, ledger.topic, ("run", "b" * 500))
    wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == 4)
    assert texts(ledger.view(0, ["run"]).committed) == {"run": "g" * 500}


def test_records_written_without_a_transaction_are_no_evidence(config, ledger, settle):
    """Neither values nor tombstones; the last one of each key is named, unless one of ours follows it."""
    plain = confluent_kafka.Producer({**config, **QUIET})
    write(plain, ledger.topic, ("run", "early"), ("alone", "plain"))
    committed(config, ledger.topic, ("run", "ours"), ("replaced", "ours"))
    settle(5)
    view = ledger.view(0, ["run", "alone", "replaced"])
    assert texts(view.committed) == {"run": "ours", "replaced": "ours"}
    assert dict(view.no_evidence) == {"alone": 1}
    write(plain, ledger.topic, ("replaced", None), ("alone", "again"), ("boundary:a/1", "plain"))
    settle(8)
    view = ledger.view(0, ["run", "alone", "replaced"], ["boundary:"])
    assert texts(view.committed) == {"run": "ours", "replaced": "ours"}
    assert dict(view.no_evidence) == {"replaced": 5, "alone": 6, "boundary:a/1": 7}


def test_a_view_spans_many_answers(config, ledger, settle):
    """Records that are megabytes apart are found, and the latest value of all answers counts."""
    filler = "f" * 400_000
    for round_ in range(4):
        records = [(f"filler-{round_}-{i}", filler) for i in range(6)]
        committed(config, ledger.topic, ("first" if round_ == 0 else "run", str(round_)), *records)
    settle(4 * 8)
    assert texts(ledger.view(0, ["first", "run"]).committed) == {"first": "0", "run": "3"}


@pytest.mark.parametrize(
    "own_keys", [OwnKeys(), OwnKeys(index=keys.INDEX)], ids=["read whole", "read from its end"]
)
@pytest.mark.parametrize("cut", [1, 90, 101], ids=["long before the end", "near the end", "everything"])
def test_a_view_tells_where_the_log_of_a_cut_partition_starts(
    embedded_kafka, config, cluster, link, cut, own_keys
):
    """By an answer of Fetch, after a refused Fetch, or without any: a missing key may have been deleted."""
    name = embedded_kafka.create_topic(unique("ledger"), config={"cleanup.policy": "delete"})
    settings = LedgerSettings(topic=name, partitions=1, replication_factor=1)
    ledger = KafkaLedger(link, settings, own_keys)
    committed(config, name, *[(f"run {number}", "committed") for number in range(100)])
    wait_until(lambda: cluster.last_stable_offsets([tp(name)])[tp(name)] == 101)
    futures = embedded_kafka.admin().delete_records([confluent_kafka.TopicPartition(name, 0, cut)])
    assert [done.result().low_watermark for done in futures.values()] == [cut]

    view = ledger.view(0, ["run 99", "run of another life"])
    assert view.log_start == cut
    assert texts(view.committed) == ({} if cut > 99 else {"run 99": "committed"})


def test_a_record_that_is_no_text_is_spelled_out(config, ledger, settle):
    """Bytes in the ledger that are not text are a value that the reader of the record cannot parse."""
    committed(config, ledger.topic, ("run", b"\xff\xfe"))
    settle(2)
    value = ledger.view(0, ["run"]).committed["run"]
    assert value.text == r"\xff\xfe"
    with pytest.raises(LedgerUnreadable, match=r"'run' \(partition 0, offset 0\) cannot be read"):
        RunRecord.from_json(value, "run")


def test_hundreds_of_transactions_of_several_producers(config, ledger, cluster):
    """Each key's look-up tells whether its transaction was committed; the cursor is the last that was."""
    outcome = {}

    def work(number):
        producer = confluent_kafka.Producer(
            {**config, **QUIET, "transactional.id": unique("p"), "linger.ms": 0}
        )
        producer.init_transactions(30)
        for i in range(100):
            producer.begin_transaction()
            write(producer, ledger.topic, (f"run/{number}/{i}", "{}"), (f"cursor/{number}", str(i)))
            if i % 7 == 3:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            outcome[f"run/{number}/{i}"] = i % 7 != 3

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    partition = tp(ledger.topic)
    wait_until(lambda: cluster.last_stable_offsets([partition])[partition] == 4 * 100 * 3)
    cursors = [f"cursor/{number}" for number in range(4)]
    expected = {key: "{}" for key, committed_ in outcome.items() if committed_}
    assert len(outcome) == 400
    values = ledger.view(0, [*outcome, *cursors]).committed
    assert texts(values) == {**expected, **dict.fromkeys(cursors, "99")}


# -- above the last stable offset -------------------------------------------------------------------------


def test_our_commit_above_a_foreign_open_transaction_is_in_the_tail(config, ledger):
    """It is not visible below the last stable offset yet: the tail has our record and our marker."""
    with foreign_transaction(config, ledger.topic, ("foreign", "open")) as foreign:
        committed(config, ledger.topic, ("run", "ours"))
        view = wait_until(lambda: view if (view := ledger.view(0, ["run"])).high_watermark == 3 else None)
        assert view.last_stable_offset == 0
        assert texts(view.committed) == {}
        producer_id = view.tail[0].producer_id
        assert list(view.tail) == [
            LedgerEntry(1, producer_id, "record", "run", LedgerValue("ours", 0, 1)),
            LedgerEntry(2, producer_id, "commit"),
        ]
        foreign.abort_transaction(30)


def test_the_tail_has_open_and_aborted_records_and_everybodys_markers(config, ledger, settle):
    """Records of the wanted keys, committed or not, and all markers, in offset order."""
    committed(config, ledger.topic, ("run", "below"))
    settle(2)

    def viewed(high):
        return wait_until(lambda: view if (view := ledger.view(0, ["run"])).high_watermark == high else None)

    with foreign_transaction(config, ledger.topic, ("run", "open"), ("unwanted", "x")) as foreign:
        # Each marker must be in the log before the next record: it follows the answer to its producer.
        aborted(config, ledger.topic, ("run", "aborted"))
        viewed(6)
        committed(config, ledger.topic, ("unwanted", "y"))
        viewed(8)
        committed(config, ledger.topic, ("run", None))
        view = viewed(10)
        assert texts(view.committed) == {"run": "below"}
        assert view.last_stable_offset == 2
        assert [(e.offset, e.kind, e.key, text_of(e)) for e in view.tail] == [
            (2, "record", "run", "open"),
            (4, "record", "run", "aborted"),
            (5, "abort", "", None),
            (7, "commit", "", None),
            (8, "record", "run", None),
            (9, "commit", "", None),
        ]
        assert view.tail[1].producer_id == view.tail[2].producer_id != view.tail[0].producer_id
        foreign.abort_transaction(30)


def test_compressed_batches_in_the_tail_are_read(config, as_written):
    """As below the last stable offset."""
    with foreign_transaction(
        {**config, "compression.type": "gzip"}, as_written.topic, ("run", "z" * 500)
    ) as foreign:
        assert [text_of(entry) for entry in as_written.view(0, ["run"]).tail] == ["z" * 500]
        foreign.abort_transaction(30)


def test_views_agree_with_a_consumer_at_every_step_of_random_histories(config, ledger):
    """Interleaved producers commit, abort and stay open: views hold exactly what was written."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    producers = [
        confluent_kafka.Producer({**config, **QUIET, "transactional.id": unique("p"), "linger.ms": 0})
        for _ in range(4)
    ]
    for producer in producers:
        producer.init_transactions(30)
    open_records: dict[int, list[tuple[str, str | None]]] = {}
    keys = ["a", "b", "c"]
    for step in range(60):
        index = rng.randrange(len(producers))
        producer = producers[index]
        if index not in open_records:
            producer.begin_transaction()
            open_records[index] = []
        act = rng.choice(["write", "write", "commit", "abort"])
        if act == "write" or not open_records[index]:
            record = (rng.choice(keys), rng.choice([f"v{step}", f"v{step}", None]))
            write(producer, ledger.topic, record)
            open_records[index].append(record)
        elif act == "commit":
            producer.commit_transaction(30)
            open_records.pop(index)
        else:
            producer.abort_transaction(30)
            open_records.pop(index)
        if step % 10 == 9:
            view = ledger.view(0, keys)
            visible = [r for r in read_topic(config, ledger.topic) if r.offset < view.last_stable_offset]
            latest = {r.key.decode(): None if r.value is None else r.value.decode() for r in visible}
            assert texts(view.committed) == {k: v for k, v in latest.items() if v is not None}, f"seed {seed}"
            raw = read_topic(config, ledger.topic, "read_uncommitted")
            assert [(e.offset, e.key, text_of(e)) for e in view.tail if e.kind == "record"] == [
                (r.offset, r.key.decode(), None if r.value is None else r.value.decode())
                for r in raw
                if view.last_stable_offset <= r.offset < view.high_watermark
            ], f"seed {seed}"
    for index in open_records:
        producers[index].abort_transaction(30)
