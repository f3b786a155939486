"""The seal task: rows become sealed batches with complete trailers, in order and in bounded memory."""

from __future__ import annotations

import builtins
import datetime as dt
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.exceptions import ProcessFailed, RecordRefused, RecordTooLarge, RunFailed
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.spark import dead_letters
from airflow_eos.spark import seal_task as seal_module
from airflow_eos.spark.dead_letters import DeadLetterRule, DeadLetters
from airflow_eos.spark.errors import TaskError
from airflow_eos.spark.placement import OwnerLayout, plan_owners
from airflow_eos.spark.process import RunContext
from airflow_eos.spark.seal_task import ArrowSealTask, SealTask
from airflow_eos.spark.sealed_rows import DEAD_TRAILER_PARTITION, SCHEMA
from airflow_eos.spark.targets import TargetTopic
from airflow_eos.wire.client_config import ClientConfig

CONFIG = ClientConfig.of({"bootstrap.servers": "nowhere:1"})
TARGETS = {
    "out": TargetTopic("out", {0: 1, 1: 1, 2: 1}, 1_048_588),
    "dlq": TargetTopic("dlq", {0: 1}, 1_048_588),
}


def task(sink_topic="out", **changes):
    layout = changes.pop("layout", plan_owners({t: x.leaders for t, x in TARGETS.items()}, 2))
    return SealTask(CONFIG, layout, TARGETS, sink_topic, changes.pop("compression", "zstd"))


def run(sealer, batches, seal_partition=5, attempt_id=77):
    out = list(sealer.seal(iter(batches), seal_partition, attempt_id))
    assert all(b.schema == SCHEMA for b in out)
    return pa.Table.from_batches(out, SCHEMA).to_pylist()


def values(rows):
    """Decode sealed rows: (topic, partition) -> values by seq."""
    decoded = defaultdict(list)
    sealed = [row for row in rows if row["batch"] is not None and row["topic"] is not None]
    for row in sorted(sealed, key=lambda r: r["seq"]):
        for raw in iter_batches(row["batch"], row["topic"], row["partition"]):
            decoded[row["topic"], row["partition"]] += decode_batch(raw, check_crc=False).value.to_pylist()
    return dict(decoded)


def rows_of(count, start=0):
    numbers = range(start, start + count)
    return pa.record_batch(
        {
            "value": pa.array([b"%d" % i for i in numbers], pa.binary()),
            "key": pa.array([b"k%d" % (i % 50) for i in numbers], pa.binary()),
        }
    )


def test_every_row_is_in_one_batch_of_the_partition_its_key_chooses():
    """No row is lost or duplicated, and partitions are those of Java's producer."""
    batches = [rows_of(1000), rows_of(500, 1000)]
    sealed = values(run(task(), batches))
    table = pa.Table.from_batches(batches)
    wanted = defaultdict(list)
    chosen = partitions_for(1500, 3, topic="out", key=table.column("key"))
    for partition, value in zip(chosen.tolist(), table.column("value").to_pylist(), strict=True):
        wanted["out", partition].append(value)
    assert sealed == dict(wanted)


def test_order_is_kept_over_many_flushes(monkeypatch):
    """Batches of a target are numbered in the order of the rows."""
    monkeypatch.setattr(seal_module, "_FLUSH_ROWS", 100)
    sealed = values(run(task(), [rows_of(60, start) for start in range(0, 3000, 60)]))
    for part in sealed.values():
        numbers = [int(v) for v in part]
        assert numbers == sorted(numbers)
    assert sum(map(len, sealed.values())) == 3000


def test_one_large_result_is_sealed_in_pieces():
    """The JVM takes each as one Arrow batch: a result of 900 MB once ended a JVM of 1 GB for all users."""
    whole = pa.record_batch({"value": pa.array([b"%5d" % i * 10_000 for i in range(400)], pa.binary())})
    sealer = task(compression="none")
    pieces = list(sealer.seal(iter([whole]), 5, 77))
    assert max(piece.nbytes for piece in pieces) <= 2.1 * sealer.flush_bytes < whole.nbytes / 2
    assert sum(map(len, values(pa.Table.from_batches(pieces).to_pylist()).values())) == 400


def test_trailers_count_what_was_sealed():
    """One per target, and one for the task itself, which goes to owner 0."""
    rows = run(task(), [rows_of(1000)])
    sealed = [r for r in rows if r["batch"] is not None]
    trailers = {(r["topic"], r["partition"]): r for r in rows if r["batch"] is None}
    own = trailers.pop((None, -1))
    assert own["owner"] == 0
    assert (own["seq"], own["records"]) == (3, 1000)
    for place, trailer in trailers.items():
        batches = [r for r in sealed if (r["topic"], r["partition"]) == place]
        assert trailer["seq"] == len(batches)
        assert trailer["records"] == sum(r["records"] for r in batches)
        assert {r["owner"] for r in batches} == {trailer["owner"]}
    assert {(r["seal_partition"], r["attempt_id"]) for r in rows} == {(5, 77)}


def test_a_task_without_rows_leaves_its_own_trailer():
    """It proves to the driver that the task ran."""
    rows = run(task(), [])
    assert [(r["topic"], r["seq"], r["records"], r["batch"]) for r in rows] == [(None, 0, 0, None)]


def test_rows_go_to_the_topics_they_name():
    """One flush, several topics, each in order."""
    batch = pa.record_batch(
        {
            "value": pa.array([b"1", b"2", b"3", b"4"], pa.binary()),
            "topic": pa.array(["out", "dlq", "out", "dlq"]),
            "partition": pa.array([2, 0, 2, 0], pa.int32()),
        }
    )
    assert values(run(task(None), [batch])) == {("out", 2): [b"1", b"3"], ("dlq", 0): [b"2", b"4"]}


def test_a_partition_column_wins_over_the_key():
    """Null leaves the choice to the key."""
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b"], pa.binary()),
            "key": pa.array([b"k1", b"k1"], pa.binary()),
            "partition": pa.array([1, None], pa.int32()),
        }
    )
    by_key = int(partitions_for(1, 3, topic="out", key=pa.array([b"k1"]))[0])
    sealed = values(run(task(), [batch]))
    assert b"a" in sealed["out", 1]
    assert b"b" in sealed["out", by_key]


def test_tombstones_and_null_keys_are_sealed():
    """A null value is data in Kafka."""
    batch = pa.record_batch(
        {"value": pa.array([None, b""], pa.binary()), "key": pa.array([b"gone", None], pa.binary())}
    )
    sealed = [v for part in values(run(task(), [batch])).values() for v in part]
    assert sorted(sealed, key=str) == sorted([None, b""], key=str)


def test_null_keys_are_spread_over_all_partitions_and_flushes(monkeypatch):
    """The round-robin continues where the last flush stopped."""
    monkeypatch.setattr(seal_module, "_FLUSH_ROWS", 500)
    batches = [pa.record_batch({"value": pa.array([b"x"] * 500, pa.binary())}) for _ in range(12)]
    sealed = values(run(task(), batches))
    assert len(sealed) == 3
    assert min(map(len, sealed.values())) > 1000


def test_a_retried_task_makes_the_same_batches():
    """The same rows, partitions and bytes: an attempt may replace another one."""
    batch = rows_of(800).set_column(1, "key", pa.nulls(800, pa.binary()))
    batch = batch.append_column("timestamp", pa.array(np.arange(800)))
    first = [{**r, "attempt_id": 0} for r in run(task(), [batch], attempt_id=1)]
    second = [{**r, "attempt_id": 0} for r in run(task(), [batch], attempt_id=2)]
    assert first == second


def test_a_null_topic_without_a_sink_topic_is_an_error():
    """No topic is guessed for a record."""
    batch = pa.record_batch({"value": pa.array([b"a"], pa.binary()), "topic": pa.array([None], pa.string())})
    with pytest.raises(RecordRefused, match="'topic' is null"):
        run(task(None), [batch])


def test_a_topic_that_is_not_utf8_is_refused():
    """Spark casts bytes to text without validation; the search then finds the record."""
    topic = pa.array([b"out", b"\xffA"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary()), "topic": topic})
    with pytest.raises(RecordRefused, match="'topic' that is not UTF-8"):
        run(task(), [batch])


def test_a_partition_that_does_not_exist_is_an_error_that_names_it():
    """Before anything is written."""
    batch = pa.record_batch({"value": pa.array([b"a"], pa.binary()), "partition": pa.array([3], pa.int32())})
    with pytest.raises(RecordRefused, match="partition 3"):
        run(task(), [batch])


def test_a_record_is_measured_as_its_topic_stores_it():
    """Brokers of a topic that is uncompressed unpack the batch before they compare it with the limit."""
    settings = {"max.message.bytes": "50000", "compression.type": "uncompressed"}
    target = TargetTopic.of("out", {0: 1}, settings)
    sealer = SealTask(CONFIG, OwnerLayout(1), {"out": target}, "out", "zstd")
    large = pa.record_batch({"value": [b"-" * 60_000], "key": [None], "headers": [None]})
    assert not sealer.fits(pa.Table.from_batches([large]), target)
    with pytest.raises(RecordTooLarge, match="uncompressed, more than the topic's max"):
        run(sealer, [large.select(["value"])])
    assert values(run(sealer, [rows_of(3)])) == {("out", 0): [b"0", b"1", b"2"]}


def test_owners_are_those_of_the_layout():
    """Also for topics the layout does not know."""
    layout = OwnerLayout(7)
    for row in run(task(layout=layout), [rows_of(100)]):
        if row["topic"] is not None:
            assert row["owner"] == layout.owner(row["topic"], row["partition"])


def test_memory_is_one_flush(monkeypatch):
    """Rows are passed on as soon as they fill batches."""
    monkeypatch.setattr(seal_module, "_FLUSH_LEAST", 10_000)
    monkeypatch.setattr(seal_module, "_FLUSH_PER_TARGET", 1)
    taken = 0

    def batches():
        nonlocal taken
        for start in range(0, 100_000, 1000):
            taken += 1
            yield rows_of(1000, start)

    rows = task().seal(batches(), 0, 0)
    next(rows)
    assert taken < 5
    assert sum(b.num_rows for b in rows) > 0


def test_secrets_are_not_in_the_tasks_repr():
    """A task's repr, which logs show, has no credential."""
    config = ClientConfig.of({"bootstrap.servers": "b:1", "sasl.password": "TOPSECRET"})
    assert "TOPSECRET" not in repr(SealTask(config, OwnerLayout(1), {}, "out", "zstd"))


def reading(process, monkeypatch, offsets, dead_letters=None):
    """Return a seal task over a slice with records at these offsets."""
    count = len(offsets)
    batch = pa.record_batch(
        {
            "value": pa.array([str(offset).encode() for offset in offsets]),
            "topic": ["src"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        }
    )
    monkeypatch.setattr(seal_module, "read_slices", lambda *_: iter([(0, iter([batch]))]))
    run = RunContext("p", "r", "cursor", (), ("src",), "out")
    return ArrowSealTask(task(), ((OffsetRange("src", 3, 0, 100),),), process, run, dead_letters)


def error_of(process, monkeypatch, offsets, dead_letters=None):
    """Return the error of a slice with records at these offsets."""
    with pytest.raises(ProcessFailed) as caught:
        list(reading(process, monkeypatch, offsets, dead_letters).read_and_seal(0, 7))
    return str(caught.value)


@pytest.mark.parametrize("wrong", [1, 5, 6, 99])
def test_the_record_on_which_an_arrow_process_raises_is_named(monkeypatch, wrong):
    """Offsets have gaps; the error says how to skip the record."""

    def parse(batch):
        if str(wrong).encode() in batch["value"].to_pylist():
            raise ValueError("cannot parse it")
        return batch.select(["value"])

    message = error_of(parse, monkeypatch, [1, 2, 5, 6, 7, 40, 99])
    assert (
        f"process failed at src-3, offset {wrong}, nothing was written: ValueError: cannot parse it"
        in message
    )
    assert f'skip_offsets=[["src", 3, {wrong}, {wrong + 1}]] goes on behind it' in message


@pytest.mark.parametrize("error", [MemoryError(), ModuleNotFoundError("no module named 'parser'")])
def test_an_error_that_no_record_causes_does_not_advise_to_skip_one(monkeypatch, error):
    """Skipping would lose a valid record."""

    def parse(batch):
        raise error

    text = error_of(parse, monkeypatch, [5])
    assert "process failed at src-3, offset 5" in text
    assert "skip_offsets" not in text


def test_an_error_on_no_records_is_the_authors_too(monkeypatch):
    """A batch may be empty if compaction has removed all its offsets."""

    def first(batch):
        return batch["value"][0]

    message = error_of(first, monkeypatch, [])
    assert "process failed on a batch without records, nothing was written: IndexError" in message


def test_records_that_only_fail_together_are_named_as_offsets(monkeypatch):
    """Neither half raises: the error has the batch's offsets, and nothing to skip."""

    def together(batch):
        if batch.num_rows > 2:
            raise ValueError("too many")
        return batch.select(["value"])

    message = error_of(together, monkeypatch, [1, 2, 5])
    assert "process failed at src-3, offsets 1 to 5, nothing was written: ValueError: too many" in message
    assert "skip_offsets" not in message


def parse(batch):
    """Raise on negative values."""
    for value in batch["value"].to_pylist():
        if value.startswith(b"-"):
            raise ValueError(f"negative: {value!r}")
    return batch.select(["value"])


@pytest.mark.parametrize(
    "offsets", [[1, -2, 5], [-1, 2, 3], [1, 2, -3], [-1, -2], [-1], [1, -2, 3, 4, -5, -6, 7, 8, 9, 10, -11]]
)
def test_records_on_which_the_process_raises_are_dead_letters_and_all_others_are_processed(
    monkeypatch, offsets
):
    """Each once, in the order of reading."""
    sealing = reading(parse, monkeypatch, offsets, DeadLetterRule("dlq", 6))
    rows = pa.Table.from_batches(sealing.read_and_seal(0, 7), SCHEMA).to_pylist()
    sealed = values(rows)
    dead = sealed.pop(("dlq", 0))
    assert [int(value) for value in dead] == [offset for offset in offsets if offset < 0]
    processed = sorted(int(v) for part in sealed.values() for v in part)
    assert processed == sorted(offset for offset in offsets if offset > 0)
    (trailer,) = [row["records"] for row in rows if row["partition"] == DEAD_TRAILER_PARTITION]
    assert trailer == len(dead)


def test_a_dead_letter_is_the_record_with_error_and_place_in_its_headers():
    """Its key, value, timestamp and own headers are kept."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    row = {
        "key": b"k",
        "value": b"-1",
        "topic": "src",
        "partition": 3,
        "offset": 7,
        "timestamp": moment,
        "headers": [{"key": "own", "value": b"x"}],
    }
    schema = pa.schema([*dead_letters.SCHEMA, ("partition", pa.int32()), ("offset", pa.int64())])
    letters = DeadLetters(DeadLetterRule("dlq", 1))
    assert list(letters.results(pa.RecordBatch.from_pylist([row], schema), parse, pytest.fail)) == []
    (dead,) = letters.batch().to_pylist()
    headers = {header["key"]: header["value"] for header in dead.pop("headers")}
    assert dead == {"key": b"k", "value": b"-1", "topic": "dlq", "timestamp": moment}
    assert headers.pop("error").startswith(b"ValueError: negative: b'-1' (")
    assert headers == {"own": b"x", "source.topic": b"src", "source.partition": b"3", "source.offset": b"7"}


def test_more_dead_letters_than_are_allowed_fail_the_run(monkeypatch):
    """The error has the first one, and the remedies, each once."""
    message = error_of(parse, monkeypatch, [1, -2, -3, 4, -5], DeadLetterRule("dlq", 2))
    assert "process failed on 3 records or more, and max_dead_letters is 2; nothing was written" in message
    assert "The first: src-3, offset -2: ValueError: negative" in message
    assert message.count("nothing was written") == message.count("orrect the function") == 1


class AirflowFailException(Exception):
    """Like Airflow's, where Airflow is not installed."""

    __module__ = "airflow.sdk.exceptions"


class FailsFor(AirflowFailException):
    """A class of the author."""


NOT_THE_RECORDS = [
    MemoryError("no"),
    ModuleNotFoundError("no"),
    ProcessFailed("stop, said the author"),
    AirflowFailException("no"),
    FailsFor("no"),
]
if hasattr(builtins, "ExceptionGroup"):  # since Python 3.11
    NOT_THE_RECORDS.append(builtins.ExceptionGroup("no", [ValueError("x"), MemoryError("y")]))


@pytest.mark.parametrize("error", NOT_THE_RECORDS)
def test_what_is_no_fault_of_a_record_makes_no_dead_letter(monkeypatch, error):
    """Otherwise every record would become one in a broken installation."""

    def broken(batch):
        raise error

    message = error_of(broken, monkeypatch, [1, 2], DeadLetterRule("dlq", 100))
    assert str(error) in message


def test_what_fails_in_a_dead_letter_of_ours_is_not_the_authors(monkeypatch):
    """Neither half is tried again for it, and no record is blamed."""

    def broken(*_):
        raise KeyError("a slip of this package")

    monkeypatch.setattr(dead_letters, "with_headers", broken)
    sealing = reading(parse, monkeypatch, [1, -2], DeadLetterRule("dlq", 6))
    with pytest.raises(KeyError):
        list(sealing.read_and_seal(0, 7))
    with pytest.raises(TaskError) as caught, sealing.seal.mark.errors():
        list(sealing.read_and_seal(0, 7))
    assert type(sealing.seal.mark.find(str(caught.value))) is RunFailed


def test_what_a_result_raises_while_it_is_read_is_its_records(monkeypatch):
    """The values of a pandas column are converted only when rows are made of it."""

    def mixed(batch):
        frame = batch.select(["value"]).to_pandas()
        frame["value"] = [object() if value.startswith(b"-") else value for value in frame["value"]]
        return frame

    sealing = reading(mixed, monkeypatch, [1, -2, 3], DeadLetterRule("dlq", 6))
    sealed = values(pa.Table.from_batches(sealing.read_and_seal(0, 7), SCHEMA).to_pylist())
    assert sealed.pop(("dlq", 0)) == [b"-2"]
    assert sorted(v for part in sealed.values() for v in part) == [b"1", b"3"]


@pytest.mark.parametrize(
    "error", [SystemExit("bye"), GeneratorExit(), StopIteration(), type("Panic", (BaseException,), {})("x")]
)
def test_exceptions_that_are_no_exception_are_located_too(monkeypatch, error):
    """Without dead letters, the error names the record."""

    def leave(batch):
        if b"5" in batch["value"].to_pylist():
            raise error
        return batch.select(["value"])

    assert "process failed at src-3, offset 5, nothing was written" in error_of(leave, monkeypatch, [1, 5, 6])


@pytest.mark.parametrize("limit", [200, 400, 1000, 5000, 20_000])
@pytest.mark.parametrize("headers", [None, [{"key": "own", "value": bytes(range(250)) * 20}]])
def test_a_dead_letter_fits_its_topic_or_says_what_is_cut(monkeypatch, limit, headers):
    """It has as much of the record as the topic accepts; the error is always there."""
    noise = np.random.default_rng(7).bytes(4000)
    row = {
        "key": b"k",
        "value": b"-" + noise,
        "topic": "src",
        "partition": 3,
        "offset": 7,
        "timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
        "headers": headers,
    }
    schema = pa.schema([*dead_letters.SCHEMA, ("partition", pa.int32()), ("offset", pa.int64())])
    target = TargetTopic("dlq", {0: 1}, limit)
    sealer = task(compression="none")
    dead = DeadLetters(DeadLetterRule("dlq", 1), target, lambda letter: sealer.fits(letter, target))
    assert list(dead.results(pa.RecordBatch.from_pylist([row], schema), parse, pytest.fail)) == []
    assert sealer.fits(pa.Table.from_batches([dead.batch()]), target) == (limit > 300)
    (letter,) = dead.batch().to_pylist()
    letter_headers = {header["key"]: header["value"] for header in letter["headers"]}
    assert letter_headers["error"].startswith(b"ValueError: negative")
    assert letter_headers["source.offset"] == b"7"
    assert ("own" in letter_headers) == (headers is not None and limit == 20_000)
    whole = letter["value"] == row["value"]
    assert whole == (limit >= 5000)
    cut = letter_headers.get("source.cut", b"").decode()
    assert ("headers" in cut) == (headers is not None and limit < 20_000)
    assert ("value of 4001 bytes" in cut) == (not whole)
