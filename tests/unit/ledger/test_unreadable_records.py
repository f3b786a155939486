"""Whatever a ledger record contains, reading it gives a record, or one error that names it."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger import records
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.boundary import Boundary, Deleted
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.ledger.records.horizon import Horizon
from airflow_eos.ledger.records.identity import IdentityRecord
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.ledger_index import IndexRoot, LeafAt, Place
from airflow_eos.ledger.records.pruned import DIGEST_BYTES, PrunedRuns
from airflow_eos.ledger.records.reset import OffsetMove, ResetRecord
from airflow_eos.ledger.records.run_record import RunRecord, named_writer
from airflow_eos.ledger.records.signed import SignedFrom
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ledger import LedgerEntry, LedgerMessage, LedgerValue, LedgerView
from airflow_eos.model.output import PartitionReceipt
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.table import TableLayout
from airflow_eos.model.versioned import Versioned, VersionedOfTransaction
from airflow_eos.operations.queries import readable_runs
from tests.support.run_records import run_record

RUN = run_record(
    run_key="key",
    pipeline="pipe",
    group_id="group",
    ranges=(OffsetRange("src", 0, 1, 2),),
    records_read_by_partition={"src-0": 1},
    receipts=(PartitionReceipt("out", 0, 5, 5, 1, 70, 1, 0),),
    producer=ProducerIdentity("test.id", 7, 1),
)
CURSOR = CursorRecord(
    "group",
    "pipe",
    "test",
    "whole",
    {TopicPartition("src", 0): 2},
    {"src": "id"},
    {"src": 1},
    "key",
    "ledger",
    2,
    epochs={TopicPartition("src", 0): 4},
)
RECORDS = {
    "run": RUN,
    "cursor": CURSOR,
    "boundary": Boundary("src", "id", "2026-01-01", {0: 5}, "now", {0: 9}, {0: Deleted(5, 7)}, {0: 3}),
    "reset": ResetRecord("group", "pipe", (OffsetMove(TopicPartition("src", 0), 1, None, 3),)),
    "identity": IdentityRecord("id", 3, "test"),
    "signed": SignedFrom({0: 1}),
    "horizon": Horizon("pipe", "now", 1, {"a": 1}, ((("src",), None, "start", "end"),)),
    "pruned": PrunedRuns("now", frozenset({"ab" * DIGEST_BYTES})),
    "intent": Intent(
        "table", TableLayout("id", 1, 2), 5, RUN, "group", (LedgerMessage("cursor:group", "{}", "group"),)
    ),
    "index": IndexRoot("id", 5, (LeafAt("a", 1, "digest"),), {"k": Place(3, "record")}),
}

json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def json_of(record: Any) -> str:
    """Return the JSON form of a record; some kinds name the transaction that writes them."""
    named = "producer" in inspect.signature(record.to_json).parameters
    return str(record.to_json((7, 1)) if named else record.to_json())


def test_every_kind_of_record_has_an_example() -> None:
    """The tests below are about each of them."""
    for module in pkgutil.iter_modules(records.__path__, f"{records.__name__}."):
        importlib.import_module(module.name)
    # With slots, dataclass() creates each class a second time.
    forms = (Versioned, VersionedOfTransaction)
    kinds = {kind.__name__ for form in forms for kind in form.__subclasses__()}
    assert {type(record).__name__ for record in RECORDS.values()} == kinds


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_what_was_written_is_read(record: Any) -> None:
    """Counter-test: these are valid."""
    assert type(record).from_json(json_of(record)) == record


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@given(data=st.data())
def test_a_field_of_another_kind_is_refused_or_read_whole(record: Any, data: st.DataObject) -> None:
    """Each field is removed or replaced by any JSON: a record that serialises again, or one error."""
    written = json.loads(json_of(record))
    field = data.draw(st.sampled_from(sorted(written)))
    if data.draw(st.booleans()):
        del written[field]
    else:
        written[field] = data.draw(json_values)
    try:
        read = type(record).from_json(LedgerValue(json.dumps(written), 3, 17), "a key")
    except LedgerUnreadable as error:
        assert f"{record.KIND} 'a key' (partition 3, offset 17)" in str(error)  # noqa: PT017
        return
    assert type(record).from_json(json_of(read)) == read
    json.dumps(json.loads(json_of(read)), ensure_ascii=False, allow_nan=False).encode()


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(RUN.to_json()), **fields})


def receipt(**fields: Any) -> str:
    return changed(receipts=[{**json.loads(RUN.to_json())["receipts"][0], **fields}])


TABLE_WRITTEN = {"sink": "iceberg:c/db.t", "uuid": "u", "snapshot": 1, "files": 2, "rows": 3}


def table(**fields: Any) -> str:
    return changed(details={"table": {**TABLE_WRITTEN, **fields}})


WORK = {
    "topics": ["src"],
    "mode": "interval",
    "partition": 0,
    "sink": "out",
    "interval": ["2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"],
    "key": "2026-01-01",
    "ranges": [["src", 0, 1, 2]],
    "advance": True,
    "origin": "here",
}


def work_of(work: Any) -> str:
    return changed(details={"work": work})


HOSTILE = {
    "details that are a list of pairs": changed(details=[[None, None]]),
    "a topic that no broker takes": changed(ranges=[["x" * 250, 0, 1, 2]]),
    "a topic longer than a request can hold": changed(ranges=[["x" * 32_768, 0, 1, 2]]),
    "a topic with a blank": receipt(topic="a b"),
    "a topic of dots": receipt(topic=".."),
    "half a surrogate pair in the pipeline": changed(pipeline="p\ud800"),
    "half a surrogate pair in the details": changed(details={"notes": ["\udfff"]}),
    "another mode": changed(mode="whatever"),
    "half a surrogate pair in the mode": changed(mode="\ud800"),
    "offsets of 400 digits": changed(ranges=[["src", 0, 0, 10**400]]),
    "offsets of 64 bits without a sign": changed(ranges=[["src", 0, 0, 2**63]]),
    "offsets that are texts": changed(ranges=[["src", 0, "1", "2"]]),
    "a negative partition": changed(ranges=[["src", -1, 1, 2]]),
    "NaN": changed(details={"x": float("nan")}),
    "an infinite number": changed(trace=[["ASKED", 0.0]]).replace("0.0", "1e999"),
    "dead letters that are no number": changed(details={"dead_letters": "many"}),
    "dead letters that are a list": changed(details={"dead_letters": [1]}),
    "negative dead letters": changed(details={"dead_letters": -1}),
    "rounds that are no number": changed(details={"rounds": {}}),
    "a lag that is a text": changed(details={"lag": "many"}),
    "a lag that is nothing": changed(details={"lag": None}),
    "a negative lag": changed(details={"lag": -1}),
    "a lag that is a flag": changed(details={"lag": True}),
    "half a lag": changed(details={"lag": 1.5}),
    "a lag that is a list": changed(details={"lag": [1]}),
    "undecided offsets that are a list": changed(details={"undecided": [1]}),
    "notes that are a number": changed(details={"notes": 5}),
    "notes that are nothing": changed(details={"notes": None}),
    "a note that is a number": changed(details={"notes": [5]}),
    "ids of topics that are a list": changed(details={"topic_ids": ["src"]}),
    "an id of a topic that is a number": changed(details={"topic_ids": {"src": 1}}),
    "versions that are a list": changed(details={"versions": [1]}),
    "a table that is a list": changed(details={"table": []}),
    "a table without a name": table(sink=None),
    "a table without an id": table(uuid=5),
    "a table whose files are a text": table(files="x"),
    "a table whose snapshot is an object": table(snapshot={}),
    "a table whose replaced snapshots are a number": table(replaced=5),
    "a table whose replaced snapshot is an object": table(replaced=[{}]),
    "a task whose name no database holds": changed(details={"airflow": {"dag_id": "d", "task_id": "a\0b"}}),
    "a negative number of records": receipt(records=-1),
    "a last offset before the first": receipt(last_offset=4),
    "a negative number of bytes": receipt(size=-1),
    "a try that is true": changed(try_number=True),
    "a pipeline longer than an id can hold": changed(pipeline="p" * 8_001),
    "a group without a name": changed(group_id=""),
    "a group longer than a request can hold": changed(group_id="g" * 40_000),
    "work that is a number": work_of(5),
    "work without topics": work_of({"mode": "cursor"}),
    "work whose topics are a number": work_of({**WORK, "topics": 5}),
    "work whose topic is an object": work_of({**WORK, "topics": [{}]}),
    "work whose partition is a list": work_of({**WORK, "partition": []}),
    "work whose interval has one end": work_of({**WORK, "interval": ["2026-01-01T00:00:00.000Z"]}),
    "work whose interval is of numbers": work_of({**WORK, "interval": [1, 2]}),
    "work whose sink is a list": work_of({**WORK, "sink": []}),
    "work whose ranges are of texts": work_of({**WORK, "ranges": [["src", "0", "1", "2"]]}),
    "work whose origin is a number": work_of({**WORK, "origin": 5}),
    "work whose mode is an object": work_of({**WORK, "mode": {}}),
    "work that may advance as a text": work_of({**WORK, "advance": "yes"}),
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_value_that_no_run_writes_is_refused(value: str) -> None:
    """A client that may write to a ledger without a key must not break readers of the record."""
    with pytest.raises(LedgerUnreadable, match="cannot be read"):
        RunRecord.from_json(value)
    with pytest.raises(LedgerUnreadable, match="cannot be read"):
        RunRecord.from_json(json.loads(value))


def test_the_details_of_a_run_are_read() -> None:
    """Counter-test: everything that a run writes."""
    details = {
        "versions": {"spark": "4.0"},
        "topic_ids": {"src": "id"},
        "notes": ["a note"],
        "lag": 0,
        "undecided": 4,
        "dead_letters": 1,
        "rounds": 2,
        "table": {**TABLE_WRITTEN, "replaced": [7]},
        "airflow": {"dag_id": "d", "task_id": "t", "map_index": -1, "run_id": "r"},
        "work": WORK,
    }
    summary = RunRecord.from_json(changed(details=details)).summary()
    assert (summary["notes"], summary["lag"], summary["table"]) == (["a note"], 0, details["table"])


OFFSETS_OF_NO_LOG = {
    "a cursor before the log": ("cursor", {"ends": [["src", 0, -1]]}),
    "a cursor in a partition below the first": ("cursor", {"ends": [["src", -1, 1]]}),
    "a cursor of a topic that no broker takes": ("cursor", {"ends": [["a b", 0, 1]]}),
    "an id of a topic that no broker takes": ("cursor", {"topic_ids": {"x" * 32_768: "id"}}),
    "a cursor of a topic without partitions": ("cursor", {"partition_counts": {"src": 0}}),
    "a cursor of a ledger without partitions": ("cursor", {"ledger_partitions": 0}),
    "a cursor of a group longer than a request can hold": ("cursor", {"group": "g" * 40_000}),
    "a cursor of a pipeline that is a number": ("cursor", {"pipeline": 5}),
    "a cursor of another layout": ("cursor", {"layout": "other"}),
    "a cursor whose layout is an object": ("cursor", {"layout": {}}),
    "a boundary before the log": ("boundary", {"offsets": {"0": -1}}),
    "a boundary in a partition below the first": ("boundary", {"offsets": {"-1": 0}}),
    "a boundary of a log that ends before it begins": ("boundary", {"ends": {"0": -1}}),
    "a boundary of a time before all times": ("boundary", {"highest": {"0": -2}}),
    "a boundary behind a log that begins nowhere": (
        "boundary",
        {"unproven": {"0": {"log_start": -1, "first_timestamp": 7}}},
    ),
    "a boundary of a topic that no broker takes": ("boundary", {"topic": "a b"}),
    "a reset to before the log": ("reset", {"changes": [["src-0", 1, None, -1]]}),
    "a reset from before the log": ("reset", {"changes": [["src-0", -1, None, 1]]}),
    "a reset of a group with a NUL": ("reset", {"group": "a\0"}),
    "a reset of no topic": ("reset", {"changes": [["-0", 1, None, 1]]}),
    "an identity without partitions": ("identity", {"partitions": 0}),
    "signatures from before the log": ("signed", {"from": {"0": -1}}),
    "a horizon of no pipeline": ("horizon", {"pipeline": ""}),
    "a horizon of less than no runs": ("horizon", {"runs": -1}),
    "a horizon in a partition below the first": ("horizon", {"intervals": [[["src"], -1, "a", "b"]]}),
}


@pytest.mark.parametrize(("kind", "fields"), OFFSETS_OF_NO_LOG.values(), ids=OFFSETS_OF_NO_LOG)
def test_offsets_and_names_of_no_log_are_refused(kind: str, fields: dict[str, Any]) -> None:
    """Code that asks brokers or counts cannot take them: one error names the record."""
    record = RECORDS[kind]
    with pytest.raises(LedgerUnreadable, match=f"{record.KIND} cannot be read"):
        type(record).from_json(json.dumps({**json.loads(json_of(record)), **fields}))


@pytest.mark.parametrize(
    "head",
    [
        {"log_start": 5, "first_timestamp": "y"},
        {"log_start": "5", "first_timestamp": 7},
        {"log_start": 5, "first_timestamp": 7, "undated": "no"},
    ],
    ids=["a timestamp that is a text", "an offset that is a text", "a flag that is a text"],
)
def test_why_a_boundary_is_unproven_is_read_whole(head: dict[str, Any]) -> None:
    """The error of a run that does not accept deleted records shows it."""
    written = {**json.loads(json_of(RECORDS["boundary"])), "unproven": {"0": head}}
    with pytest.raises(LedgerUnreadable, match="boundary cannot be read"):
        Boundary.from_json(json.dumps(written))


def test_an_intent_with_an_unreadable_record_is_named() -> None:
    """The message lets its reader look the INTENT up; the record inside has no key of its own."""
    written = {**json.loads(json_of(RECORDS["intent"])), "record": json.loads(changed(v=99))}
    with pytest.raises(LedgerUnreadable, match=r"intent 'i' \(partition 3, offset 17\) .* upgrade this one"):
        Intent.from_json(LedgerValue(json.dumps(written), 3, 17), "i")


def test_texts_of_any_language_are_read() -> None:
    """Counter-test: a surrogate pair is one character, and a number may have 63 bits."""
    text = changed(pipeline="p\U0001f600\u00e9", ranges=[["x" * 249, 0, 0, 2**63 - 1]])
    record = RunRecord.from_json(text)
    assert (record.pipeline, record.ranges[0].end) == ("p\U0001f600\u00e9", 2**63 - 1)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("value", ["", "null", "[]", "{}", '"text"', "{", "[" * 100_000, "1e999", "NaN"])
def test_what_is_no_record_is_one_error(record: Any, value: str) -> None:
    """Neither KeyError nor RecursionError escapes; the message shows the beginning of the value."""
    with pytest.raises(LedgerUnreadable, match="cannot be read"):
        type(record).from_json(value)
    assert named_writer(value) is None


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_newer_version_asks_for_an_upgrade(record: Any) -> None:
    """Such a record is neither a mistake nor garbage."""
    newer = json.dumps({**json.loads(json_of(record)), "v": 99})
    with pytest.raises(LedgerUnreadable, match=r"version 99, .* upgrade this one"):
        type(record).from_json(newer)


def test_the_key_is_named() -> None:
    """The message lets its reader look the record up."""
    with pytest.raises(LedgerUnreadable, match="run record 'run:pipe/x'"):
        RunRecord.from_json("garbage", "run:pipe/x")


def test_the_writer_of_a_run_record_is_known_without_reading_the_rest() -> None:
    """Also in a newer version."""
    newer = {**json.loads(RUN.to_json()), "v": 99, "ranges": "other"}
    assert named_writer(json.dumps(newer)) == (7, 1)
    assert named_writer(CURSOR.to_json()) is None


def test_the_place_is_named() -> None:
    """Partition and offset of a value that came from a ledger, also of a newer version."""
    with pytest.raises(LedgerUnreadable, match=r"run record 'k' \(partition 3, offset 17\) cannot be read"):
        RunRecord.from_json(LedgerValue("garbage", 3, 17), "k")
    with pytest.raises(LedgerUnreadable, match=r"cursor 'k' \(partition 0, offset 5\) has version 9"):
        CursorRecord.from_json(LedgerValue('{"v":9}', 0, 5), "k")


def test_only_a_tombstone_deletes() -> None:
    """An empty value is a record that cannot be read, on either side of the last stable offset."""
    before, empty = LedgerValue("before", 0, 4), LedgerValue("", 0, 5)
    for value, kept in ((None, {}), (empty, {"k": empty})):
        tail = (LedgerEntry(5, 1, "record", "k", value), LedgerEntry(6, 1, "commit"))
        assert answer_of(LedgerView(5, 7, {"k": before}, tail)).committed == kept


def test_listings_go_on_behind_what_cannot_be_read() -> None:
    """The listing reports it, and shows the others."""
    values, complaints = {"a": "garbage", "b": RUN.to_json(), "c": ""}, list[str]()
    assert readable_runs(values.items(), complaints) == [RUN]
    assert ["'a'" in complaints[0], "'c'" in complaints[1], len(complaints)] == [True, True, 2]
    assert readable_runs(values.items()) == [RUN]


@pytest.mark.parametrize(
    ("details", "dag"),
    [
        ({}, ""),
        ({"airflow": {"dag_id": "d", "task_id": "t", "map_index": -1, "run_id": "r"}}, "d"),
        ({"airflow": {"dag_id": ["d"]}}, ""),
        ({"airflow": "d"}, ""),
        ({"airflow": None}, ""),
    ],
)
def test_a_record_names_its_dag_or_none(details, dag):
    """Records of versions without Dag names are read as before; an invalid name counts as none."""
    record = RunRecord.from_json(replace(RUN, details=details).to_json())
    assert record.dag_id == dag
