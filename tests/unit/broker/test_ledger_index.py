"""A look-up with the index finds what one without it finds, whatever the log has, and reads little of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.broker.ledger_log import index as ledger_index
from airflow_eos.broker.ledger_log import scan as ledger_scan
from airflow_eos.broker.ledger_log.evidence import Evidence, KeyQuery
from airflow_eos.broker.ledger_log.index import PartitionIndex
from airflow_eos.broker.ledger_log.scan import committed_values
from airflow_eos.engine.index_keeper import IndexKeeper
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records import ledger_index as index_format
from airflow_eos.ledger.records.ledger_index import Around
from airflow_eos.ledger.writer import LedgerWriter
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import TopicPartition
from tests.support.hand_written_log import HandWrittenLog
from tests.support.record_batches import ABORT, COMMIT

WHERE = TopicPartition("ledger", 0)
NAMES = ("run:a/1", "run:a/10", "run:a/2", "run:b/1", "cursor:g")
INDEXER = 9


def producer_of(value):
    return None if value is None else json.dumps({"v": 1, "value": value})


def last(result):
    """Return the offset of each key's last record that counts as evidence."""
    return {key: max(r.offset for r in result.rejected if r.key == key) for key, _, _ in result.rejected}


class Session:
    """A transaction of the indexer in a log written by hand."""

    def __init__(self, log):
        self._log = log
        self.identity = ProducerIdentity("index", INDEXER, 0)

    def begin(self):
        pass

    def stage(self, group, offsets, messages):
        first = self._log.end
        self._log.write(INDEXER, *((message.key, message.value) for message in messages))
        return list(range(first, self._log.end))

    def commit(self):
        self._log.finish(INDEXER, COMMIT)

    def close(self):
        pass


class Indexed:
    """The real index on such a log."""

    topic = "ledger"

    def __init__(self, log):
        self.log = log
        self.reader = PartitionIndex(WHERE, keys.INDEX, "id")
        cluster: Any = SimpleNamespace(describe_producers=lambda partitions: {})
        transactions: Any = SimpleNamespace(fence=lambda name: Session(log))
        self.keeper = IndexKeeper(self, LedgerWriter(cluster, transactions), "eos")

    def describe(self):
        return SimpleNamespace(topic_id="id")

    def index_root(self, partition):
        return self.reader.root("connections", 0, self.log.stable, Evidence())

    def index_leaf(self, partition, at):
        return self.reader.leaf("connections", at, Evidence())

    def decided(self, partition, start, seconds):
        bound = index_format.may_speak_for(self.log.stable, self.log.end)
        return self.reader.decided("connections", start, bound, Evidence(), seconds)


@pytest.fixture
def small(monkeypatch):
    """Leaves and windows so small that there are many."""
    monkeypatch.setattr(index_format, "LEAF_ENTRIES", 2)
    monkeypatch.setattr(ledger_index, "_FIRST_WINDOW", 3)


steps = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from([1, 2, 3, None]),
        st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["x", None])), min_size=1, max_size=3),
    ),
    st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.none()),
    st.tuples(st.just("index"), st.none(), st.none()),
)


@given(st.lists(steps, max_size=40), st.lists(st.integers(1, 5), max_size=10), st.booleans())
def test_a_look_up_by_the_index_finds_what_one_without_it_does(history, sizes, kept):
    """For every history of interleaved producers, also others', with an index written at any point of it.

    The same holds for a reader that knows an earlier index.
    """
    log = HandWrittenLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_format, "LEAF_ENTRIES", 2)
        patch.setattr(ledger_index, "_FIRST_WINDOW", 3)
        patch.setattr(
            ledger_scan,
            "fetch_answers",
            lambda *args, isolation="read_committed", max_bytes=0: log.answers(
                args[2], args[3], isolation, sizes
            ),
        )
        indexed = Indexed(log)
        earlier = PartitionIndex(WHERE, keys.INDEX, "id")
        for act, producer, rows in history:
            if act == "write":
                log.write(producer, *((key, producer_of(value)) for key, value in rows))
            elif act == "index":
                if INDEXER not in log.first:
                    indexed.keeper.extend(0)
                    earlier.committed("connections", 0, log.stable, KeyQuery(frozenset(NAMES)), Evidence())
            elif producer in log.first:
                log.finish(producer, COMMIT if act == "commit" else ABORT)
        for wanted in (
            KeyQuery(frozenset(NAMES)),
            KeyQuery(frozenset({"run:a/1", "absent"})),
            KeyQuery(frozenset({"cursor:g"}), ("run:a/",)),
        ):
            expected = committed_values("connections", WHERE, 0, log.stable, wanted, Evidence())
            reader = earlier if kept else PartitionIndex(WHERE, keys.INDEX, "id")
            answer = reader.committed("connections", 0, log.stable, wanted, Evidence())
            assert answer.committed == expected.committed
            assert last(answer) == last(expected)


@given(st.lists(steps, max_size=40), st.integers(1, 2))
def test_neighbours_are_those_of_all(history, count):
    """At least the nearest keys with a prefix on each side, and no key that does not exist."""
    log = HandWrittenLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_format, "LEAF_ENTRIES", 2)
        patch.setattr(ledger_index, "_FIRST_WINDOW", 3)
        patch.setattr(
            ledger_scan,
            "fetch_answers",
            lambda *args, isolation="read_committed", max_bytes=0: log.answers(
                args[2], args[3], isolation, []
            ),
        )
        indexed = Indexed(log)
        for act, producer, rows in history:
            if act == "write":
                log.write(producer, *((key, producer_of(value)) for key, value in rows))
            elif act == "index":
                indexed.keeper.extend(0)
            elif producer in log.first:
                log.finish(producer, COMMIT if act == "commit" else ABORT)
        whole = KeyQuery(frozenset(), ("run:",))
        all_of = committed_values("connections", WHERE, 0, log.stable, whole, Evidence()).committed
        for key in (*NAMES, "run:a/15", "run:", "run:z"):
            wanted = KeyQuery(frozenset(), (Around("run:", key, count),))
            reader = PartitionIndex(WHERE, keys.INDEX, "id")
            neighbours = reader.committed("connections", 0, log.stable, wanted, Evidence()).committed
            assert neighbours.items() <= all_of.items()
            below = sorted(other for other in all_of if other < key)[-count:]
            above = sorted(other for other in all_of if other > key)[:count]
            assert {*below, *above} <= neighbours.keys()


def filled(monkeypatch, records=200):
    """A log of this many runs and an index of it; and the batches that look-ups read from then on."""
    log, read = HandWrittenLog(), []

    def fetch_answers(*args, isolation="read_committed", max_bytes=0):
        for answer in log.answers(args[2], args[3], isolation, [1] * 1000 if max_bytes else []):
            read.append(len(answer.batches))
            yield answer

    monkeypatch.setattr(ledger_scan, "fetch_answers", fetch_answers)
    for number in range(records):
        log.write(1, (f"run:a/{number:04d}", producer_of("x")))
        log.finish(1, COMMIT)
    indexed = Indexed(log)
    assert indexed.keeper.extend(0).is_whole
    return log, indexed, read


def ask(log, *names, prefixes=()):
    reader = PartitionIndex(WHERE, keys.INDEX, "id")
    wanted = KeyQuery(frozenset(names), prefixes)
    return reader.committed("connections", 0, log.stable, wanted, Evidence()).committed


def test_what_is_read_does_not_grow(monkeypatch, small):
    """The tail, a root, a leaf, a record: the same after 50 runs as after 400."""
    needed = []
    for records in (50, 400):
        log, _, read = filled(monkeypatch, records)
        read.clear()
        assert list(ask(log, "run:a/0007", "absent")) == ["run:a/0007"]
        needed.append(sum(read))
    assert needed[0] == needed[1] < 20


def test_a_copied_topic_has_no_index(monkeypatch, small):
    """In a copy, such as a mirror's, offsets mean nothing: all is read."""
    log, _, read = filled(monkeypatch)
    read.clear()
    reader = PartitionIndex(WHERE, keys.INDEX, "other id")
    answer = reader.committed("connections", 0, log.stable, KeyQuery(frozenset({"run:a/0007"})), Evidence())
    assert list(answer.committed) == ["run:a/0007"]
    assert sum(read) > 200


@pytest.mark.parametrize("damage", ["leaf", "record"])
def test_what_the_log_does_not_confirm_is_not_believed(monkeypatch, small, damage):
    """A leaf, or a record, that is not where the index says: all is read, and found."""
    log, indexed, read = filled(monkeypatch)
    root = indexed.index_root(0)[1]
    leaf = root.leaf_of("run:a/0007")
    offset = leaf.offset if damage == "leaf" else indexed.index_leaf(0, leaf)["run:a/0007"].offset
    if damage == "record":  # and a later one of the key, as after compaction
        log.write(1, ("run:a/0007", producer_of("later")))
        log.finish(1, COMMIT)
    remove(log, offset)
    wanted = KeyQuery(frozenset({"run:a/0007", "run:a/0008"}))
    answer = indexed.reader.committed("connections", 0, log.stable, wanted, Evidence())
    assert sorted(answer.committed) == ["run:a/0007", "run:a/0008"]
    assert indexed.keeper.extend(0).is_whole  # it repairs the damage
    read.clear()
    assert sorted(ask(log, "run:a/0007", "run:a/0008")) == ["run:a/0007", "run:a/0008"]
    assert sum(read) < 40


def remove(log, offset):
    from airflow_eos.recordbatch.header import iter_batches

    log.batches = [
        raw
        for raw in log.batches
        if not any(
            batch.header.base_offset <= offset < batch.header.next_offset
            for batch in iter_batches(raw, "ledger", 0)
        )
    ]


def test_an_index_that_no_run_wrote_is_not_used(monkeypatch, small):
    """An index without a transaction, or naming another producer, does not count; the earlier one does."""
    log, _, _ = filled(monkeypatch)
    lie = index_format.IndexRoot("id", through=log.end)
    log.write(None, (keys.INDEX.root, lie.to_json((INDEXER, 0))))
    log.write(1, (keys.INDEX.root, lie.to_json((INDEXER, 0))))
    log.finish(1, COMMIT)
    assert list(ask(log, "run:a/0007")) == ["run:a/0007"]
    log.write(1, (keys.INDEX.root, lie.to_json((1, 0))))  # it would be accepted if it were ours
    log.finish(1, COMMIT)
    assert ask(log, "run:a/0007") == {}


@pytest.mark.parametrize("value", ["garbage", '{"v": 99}', '{"v":1,"content":"AAAA"}'])
def test_an_index_that_cannot_be_read_is_none(monkeypatch, small, value):
    """Also an index of a newer version: everything is read, nothing fails."""
    log, _, _ = filled(monkeypatch)
    log.write(1, (keys.INDEX.root, value))
    log.finish(1, COMMIT)
    assert list(ask(log, "run:a/0007")) == ["run:a/0007"]


def test_neighbours_stay_together():
    """Leaves are in the order of keys and about equally full, and no key is lost."""
    places = {f"k{n:05d}": index_format.Place(n, "record") for n in range(4_500)}
    leaves = index_format.split(places)
    assert [len(leaf) for leaf in leaves] == [1500, 1500, 1500]
    assert [key for leaf in leaves for key in leaf] == sorted(places)
    assert index_format.split({}) == []


def test_a_leaf_that_expands_without_end_is_refused():
    """Another client may have written it to the ledger."""
    import base64
    import zlib

    content = base64.b64encode(zlib.compress(b" " * (65 << 20))).decode()
    value = json.dumps({"v": 1, "content": content})
    with pytest.raises(LedgerUnreadable, match="larger"):
        index_format.IndexRoot.from_json(value)
