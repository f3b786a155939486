"""A client that may write to the ledger topic, and to nothing else, cannot forge or undo a commit."""

from __future__ import annotations

import json
import logging
import re
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from airflow_eos.cli.main import main
from airflow_eos.engine import find_committed
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    ConfigurationError,
    CursorMoved,
    LedgerReplaced,
    LedgerTampered,
    LedgerUnreadable,
    OutcomeUnknown,
)
from airflow_eos.ledger import authority, keys
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange, TopicPartition
from airflow_eos.model.signature import HEADER, SignedRecord
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.queries import create_ledger, ledger_records, run_records
from airflow_eos.operations.upkeep import dismiss_record, sign_ledger
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.readers import read_topic
from tests.support.hostile import produce_bytes
from tests.support.local_runs import Pipeline
from tests.support.markers import wait_for_markers
from tests.support.patience import eventually
from tests.support.record_batches import Record, nullable, varint, write
from tests.support.topic_settings import change_topic

COUNT = 40


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    filled = Pipeline(embedded_kafka, partitions=1)
    filled.publish([f"r{n}" for n in range(COUNT)])
    return filled


def copies(count):
    return sorted(f"r{n}" for n in range(count))


def given(pipeline, run_id, start=0, end=10):
    return {"run_id": run_id, "ranges": Explicit((OffsetRange(pipeline.source, 0, start, end),))}


def forge(pipeline, key, value, routing=None, transactional_id=None):
    """Write what a plain producer with Write on the ledger can; transactionally if it has its own id."""
    spec, ledger = pipeline.spec, pipeline.spec.ledger
    partition = 0
    if routing is not None:
        column = pa.array([routing.encode()], pa.binary())
        partition = int(partitions_for(1, ledger.partitions, topic=ledger.topic, key=column)[0])
    settings = {**spec.kafka, "transactional.id": transactional_id} if transactional_id else dict(spec.kafka)
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.produce(ledger.topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0
    if transactional_id:
        producer.commit_transaction(30)
        wait_for_markers(spec.kafka, [TopicPartition(ledger.topic, partition)])


def forge_bytes(pipeline, batch, routing):
    """As :func:`forge`, with a batch of any bytes."""
    spec, ledger = pipeline.spec, pipeline.spec.ledger
    column = pa.array([routing.encode()], pa.binary())
    partition = int(partitions_for(1, ledger.partitions, topic=ledger.topic, key=column)[0])
    produce_bytes(ClientConfig.of(spec.kafka), TopicPartition(ledger.topic, partition), batch)


def overlong(key, value):
    """A batch of one record whose key length takes a byte more than necessary."""
    length = len(key) << 1
    spelled = bytes((length & 0x7F | 0x80, length >> 7 | 0x80, 0))
    fields = b"\0\0\0" + spelled + key.encode() + nullable(value) + varint(0)
    return write([Record(0, 0, None, None)], section=varint(len(fields)) + fields)


def compact(pipeline):
    """Wait until every partition of the ledger holds each key once."""
    spec, ledger = pipeline.spec, pipeline.spec.ledger
    settings = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0", "max.compaction.lag.ms": "100"}
    change_topic(pipeline.kafka.admin(), ledger.topic, settings)

    def is_compacted():
        for partition in range(ledger.partitions):  # roll a segment so that the one before can be cleaned
            filler = Producer(dict(spec.kafka))
            filler.produce(ledger.topic, key=f"filler-{partition}", value=b"x", partition=partition)
            assert filler.flush(30) == 0
        records = read_topic(dict(spec.kafka), ledger.topic, "read_uncommitted")
        keys_there = [
            (record.partition, record.key) for record in records if not record.key.startswith(b"filler")
        ]
        return len(keys_there) == len(set(keys_there))

    eventually(is_compacted, bool, seconds=90, pause=0.2)


def record_of(pipeline, run_id):
    spec = replace(pipeline.spec, **given(pipeline, run_id))
    return keys.run_record_key(keys.run_key(spec))


def forged_record(pipeline, victim, template):
    """Return a run record that claims the victim's work is done, made from a real one."""
    spec = replace(pipeline.spec, **given(pipeline, victim, 10, 20))
    data = {**json.loads(template.to_json()), "run_key": keys.run_key(spec), "run_id": victim}
    data["producer"]["transactional_id"] = keys.transactional_id(spec)
    data["ranges"] = [[pipeline.source, 0, 10, 20]]
    data["details"].pop("work")
    return keys.run_record_key(data["run_key"]), json.dumps(data)


def test_a_forged_record_is_no_commit(pipeline, caplog):
    """It neither answers the run nor lets it write again: the run is refused until somebody has looked."""
    template = pipeline.run(**given(pipeline, "r1"))
    key, value = forged_record(pipeline, "r2", template)
    forge(pipeline, key, value, pipeline.spec.pipeline)
    with caplog.at_level(logging.WARNING):
        assert find_committed(replace(pipeline.spec, **given(pipeline, "r2", 10, 20))) is None
    assert "that no run wrote is ignored" in caplog.text
    with pytest.raises(LedgerTampered, match=rf"record of '{key}' at offset \d+ that no run wrote"):
        pipeline.run(**given(pipeline, "r2", 10, 20))
    assert pipeline.output() == copies(10)
    record = {"key": key, "routing": pipeline.spec.pipeline}
    assert dismiss_record(pipeline.spec.deployment, **record, execute=False).done is False
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r2", 10, 20))
    assert dismiss_record(pipeline.spec.deployment, **record).done is True
    assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found
    assert pipeline.output() == copies(20)
    with pytest.raises(ConfigurationError, match="no other program wrote one"):
        dismiss_record(pipeline.spec.deployment, **record)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_a_commit_is_not_unmade(pipeline, value):
    """Neither a tombstone nor garbage in place of a record makes the run repeat."""
    assert not pipeline.run(**given(pipeline, "r1")).found
    forge(pipeline, record_of(pipeline, "r1"), value, pipeline.spec.pipeline)
    assert pipeline.run(**given(pipeline, "r1")).found
    assert pipeline.run(**given(pipeline, "r1"), clear_number=1, on_committed="skip").found
    assert pipeline.output() == copies(10)
    listed = ledger_records(pipeline.spec.deployment, key=record_of(pipeline, "r1"))
    assert [record.value["run_id"] for record in listed] == ["r1"]


def of_no_text(key):
    """A tombstone beside a record that is not text: such a batch was once hidden from us only."""
    return write([Record(0, 0, key.encode(), None), Record(1, 0, b"\xff", b"\xfe")])


@pytest.mark.parametrize(
    "batch",
    [
        lambda key: write([Record(0, 0, key.encode(), None)]),
        lambda key: write([Record(0, 0, key.encode(), b"\xff")]),
        lambda key: overlong(key, b"{}"),
        of_no_text,
    ],
    ids=["tombstone", "garbage", "overlong", "no-text"],
)
def test_a_record_that_compaction_removed_for_a_forged_one_is_not_written_again(pipeline, batch):
    """Compaction keeps the last record of a key, whoever wrote it, and in a new ledger tombstones too."""
    assert not pipeline.run(**given(pipeline, "r1")).found
    forge_bytes(pipeline, batch(record_of(pipeline, "r1")), pipeline.spec.pipeline)
    assert pipeline.run(**given(pipeline, "r1")).found
    compact(pipeline)
    for clear in (0, 1):
        with pytest.raises(LedgerTampered, match="compaction may have removed ours"):
            pipeline.run(**given(pipeline, "r1"), clear_number=clear)
    assert pipeline.output() == copies(10)


def test_a_record_in_the_transaction_of_another_producer_is_no_commit(pipeline):
    """A client that may write under another transactional id writes records naming that producer, or none."""
    template = pipeline.run(**given(pipeline, "r1"))
    key, value = forged_record(pipeline, "r2", template)
    forge(pipeline, key, value, pipeline.spec.pipeline, "somebody")
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r2", 10, 20))


def test_a_forged_identity_stops_nobody(pipeline):
    """The ledger's identity is the one that its first user pinned in a transaction."""
    create_ledger(pipeline.spec.deployment)
    forged = json.dumps({"v": 1, "topic_id": "somebody's", "partitions": 1, "prefix": "theirs"})
    forge(pipeline, keys.LEDGER_IDENTITY_KEY, forged)
    assert not pipeline.run(**given(pipeline, "r1")).found


def command(pipeline, *arguments):
    """Give a command to ``python -m airflow_eos``; return its exit code."""
    ledger, prefix, servers = pipeline.ledger, pipeline.spec.prefix, pipeline.kafka.bootstrap_servers
    options = ["--ledger-topic", ledger, "--prefix", prefix, "--bootstrap-servers", servers]
    return main([*arguments, *options, "--output", "json"])


def test_an_identity_that_compaction_removed_for_a_forged_one_is_pinned_again_on_request(pipeline):
    """What it was is unknown: an administrator has to confirm that the topic is the original one."""
    assert not pipeline.run(**given(pipeline, "r1")).found
    forge(pipeline, keys.LEDGER_IDENTITY_KEY, b"theirs")
    compact(pipeline)
    with pytest.raises((LedgerTampered, LedgerReplaced)):
        pipeline.run(**given(pipeline, "r1"))
    assert command(pipeline, "dismiss", "--key", "run:k", "--routing", "", "--yes") == 2, "of no partition"
    assert command(pipeline, "dismiss", "--key", keys.LEDGER_IDENTITY_KEY, "--routing", "", "--yes") == 0
    assert command(pipeline, "init", "--adopt-new") == 0
    assert pipeline.run(**given(pipeline, "r1")).found
    assert pipeline.output() == copies(10)


@contextmanager
def somebody_elses_transaction(pipeline, key="theirs", transactional_id="held"):
    """A plain producer's open transaction with a record in each partition of the ledger."""
    ledger = pipeline.spec.ledger
    producer = Producer({**pipeline.spec.kafka, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(ledger.partitions):
        producer.produce(ledger.topic, key=key, value="x", partition=partition)
    assert producer.flush(30) == 0
    try:
        yield
    finally:
        producer.abort_transaction(30)


def test_a_record_above_an_open_transaction_is_not_waited_for(pipeline):
    """It cost a minute, with an unknown outcome at the end."""
    pipeline.run(**given(pipeline, "r1"))
    with somebody_elses_transaction(pipeline):
        forge(pipeline, record_of(pipeline, "r1"), b"{}", pipeline.spec.pipeline)
        assert pipeline.run(**given(pipeline, "r1")).found
        assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found


@pytest.mark.parametrize(
    ("prefix", "command"), [("", "`airflow eos abort --foreign`"), ("test.", "`airflow eos abort`")]
)
def test_the_owner_of_an_open_transaction_is_named(pipeline, monkeypatch, prefix, command):
    """Runs wait for its end if it has a record of theirs; repair does not list it."""
    held = f"{prefix}held"
    pipeline.run(**given(pipeline, "r1"))
    monkeypatch.setattr(authority, "UNDECIDED_WAIT_SECONDS", 1.0)
    with somebody_elses_transaction(pipeline, record_of(pipeline, "r2"), held):
        with pytest.raises(OutcomeUnknown, match="`airflow eos doctor` names it"):
            pipeline.run(**given(pipeline, "r2", 10, 20))
        checks = {check.name: check for check in examine(DoctorOptions(pipeline.spec.deployment))}
        end = checks[f"end of topic {pipeline.ledger}"]
        assert (end.status, f"transactional id {held!r}" in end.found) == ("warn", True)
        assert command in end.advice
        assert ("kafka-transactions.sh" in end.advice) is (not prefix), "it may end a run's after the proof"
    assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found


def test_a_record_that_cannot_be_read_is_named_and_does_not_hide_the_others(pipeline):
    """The owner of a transactional id may write anything under a key: only that key's run stops."""
    pipeline.run(**given(pipeline, "r1"))
    spec = replace(pipeline.spec, **given(pipeline, "r2", 10, 20))
    key = record_of(pipeline, "r2")
    newer = json.dumps({"v": 99, "producer": None})
    for value, reason in (
        (b"garbage", "JSONDecodeError"),
        (b"[1]", "TypeError"),
        (newer, "upgrade this one"),
    ):
        forge(pipeline, key, value, spec.pipeline, "somebody")
        named = rf"run record '{key}' \(partition \d, offset \d+\) .*{reason}"
        with pytest.raises(LedgerUnreadable, match=named):
            pipeline.run(**given(pipeline, "r2", 10, 20))
        record = {"key": key, "routing": spec.pipeline}
        if value == newer:
            with pytest.raises(ConfigurationError, match="no other program wrote one"):
                dismiss_record(spec.deployment, **record)
        else:
            assert not dismiss_record(spec.deployment, **record, execute=False).done
    records, unreadable = run_records(spec.deployment, spec.pipeline)
    assert [record.run_id for record in records] == ["r1"]
    assert len(unreadable) == 1
    assert "version 99" in unreadable[0]
    forge(pipeline, key, b"garbage", spec.pipeline, "somebody")
    assert dismiss_record(spec.deployment, **record).done
    assert not pipeline.run(**given(pipeline, "r2", 10, 20)).found
    assert not pipeline.run(**given(pipeline, "r3", 20, 30)).found


# -- with a key: other clients have their own transactional ids --------------------------------------------

KEY, OTHER_KEY = "the-secret-of-this-ledger", "the-secret-of-another"


def keyed(pipeline, key):
    """The same pipeline with another ledger key."""
    pipeline.spec = replace(pipeline.spec, ledger=replace(pipeline.spec.ledger, key=key))
    return pipeline


@pytest.fixture
def signed(pipeline):
    return keyed(pipeline, KEY)


def naming_its_producer(value, producer):
    return json.dumps({**json.loads(value), "producer": producer})


def forge_as_somebody(pipeline, key, value, routing, headers=None):
    """In its own transaction, and naming its own producer: all that such a client can do."""
    with ControlPlane(pipeline.spec) as control:
        session = control.transactions.fence("somebody")
        identity = session.identity
        partition = control.ledger.partition_for(routing)
        session.close()
    producer = Producer({**pipeline.spec.kafka, "transactional.id": "somebody"})
    producer.init_transactions(30)
    named = {**identity.to_dict(), "producer_epoch": identity.producer_epoch + 1}
    value = value(named) if callable(value) else value
    headers = headers(value, partition) if callable(headers) else headers
    producer.begin_transaction()
    producer.produce(pipeline.spec.ledger.topic, key=key, value=value, partition=partition, headers=headers)
    assert producer.flush(30) == 0
    producer.commit_transaction(30)
    wait_for_markers(pipeline.spec.kafka, [TopicPartition(pipeline.spec.ledger.topic, partition)])


def forge_commit(pipeline, victim, template):
    key, value = forged_record(pipeline, victim, template)
    producer = json.loads(value)["producer"]

    def named(his):
        return naming_its_producer(value, {**his, "transactional_id": producer["transactional_id"]})

    forge_as_somebody(pipeline, key, named, pipeline.spec.pipeline)


def test_without_a_key_any_transactional_id_suffices(pipeline):
    """Counter-test, and what docs/security.md admits: the forged record counts as a commit."""
    forge_commit(pipeline, "r2", pipeline.run(**given(pipeline, "r1")))
    assert pipeline.run(**given(pipeline, "r2", 10, 20)).found


def test_a_cursor_that_was_dismissed_gets_a_position_by_command(pipeline):
    """The group's offsets name this ledger; the errors say what to do, and that works."""
    pipeline.run("r1", ranges=Cursor(max_records=10))
    group, deployment = pipeline.spec.group_id, pipeline.spec.deployment
    forge(pipeline, keys.cursor_key(group), b"{}", group, "stranger")
    with pytest.raises(LedgerUnreadable, match="cursor:"):
        pipeline.run("r2")
    assert dismiss_record(deployment, keys.cursor_key(group), routing=group).done
    advice = r"beside this ledger, .* has no cursor .* `airflow eos reset-offsets`, such as --to committed"
    with pytest.raises(LedgerReplaced, match=advice):
        pipeline.run("r2")
    checks = {check.name: check for check in examine(DoctorOptions(deployment, group, [pipeline.source]))}
    assert checks[f"group {group}"].status == "fail"
    assert re.search(advice, checks[f"group {group}"].found)
    reset = Reset(group, to="committed", topics=[pipeline.source], pipeline=pipeline.spec.pipeline)
    assert reset_cursor(deployment, reset).done
    assert not pipeline.run("r2", ranges=Cursor(max_records=10)).found
    assert pipeline.output() == copies(20)


def test_an_older_cursor_that_was_put_back_is_told_from_offsets_that_others_commit(pipeline):
    """As when the ledger is copied; continuing at the older one would write the last run's output again."""
    group, deployment = pipeline.spec.group_id, pipeline.spec.deployment
    pipeline.run("r1", ranges=Cursor(max_records=10))
    key = keys.cursor_key(group)
    (older,) = [record.value for record in ledger_records(deployment) if record.key == key]
    pipeline.run("r2", ranges=Cursor(max_records=10))
    forge(pipeline, key, json.dumps(older), group, "mirror")
    with pytest.raises(CursorMoved, match=r"offset is 20, .* cursor 10: a run .* --to committed"):
        pipeline.run("r3", ranges=Cursor(max_records=10))
    assert reset_cursor(deployment, Reset(group, to="committed")).done
    assert not pipeline.run("r3", ranges=Cursor(max_records=10)).found
    assert pipeline.output() == copies(30)


@pytest.mark.parametrize("transactional_id", [None, "stranger"])
@pytest.mark.parametrize("value", [None, b"{}"], ids=["tombstone", "garbage"])
def test_an_intent_that_no_run_wrote_is_dismissed(pipeline, value, transactional_id, capsys):
    """It names no table to check, and every run of the cursor is refused."""
    pipeline.run("r1", ranges=Cursor(max_records=10))
    key, routing = keys.intent_key(keys.transactional_id(pipeline.spec)), pipeline.spec.group_id
    forge(pipeline, key, value, routing, transactional_id)
    if not (value is None and transactional_id):  # every client may have written such a tombstone
        with pytest.raises((LedgerTampered, LedgerUnreadable), match=key):
            pipeline.run("r2", ranges=Cursor(max_records=10))
        for more in ([], ["--yes"]):
            assert command(pipeline, "dismiss", "--key", key, "--routing", routing, *more) == 0
            assert json.loads(capsys.readouterr().out)["done"] is bool(more)
    assert not pipeline.run("r2", ranges=Cursor(max_records=10)).found
    assert pipeline.output() == copies(20)


def test_a_record_under_the_intent_of_another_group_stops_no_cursor(pipeline, capsys):
    """The groups share a ledger partition, and one group's name is a prefix of the other's."""
    pipeline.run("r1", ranges=Cursor(max_records=10))
    intent = keys.intent_key(f"{keys.transactional_id(pipeline.spec)}-eu")
    forge(pipeline, intent, "theirs", pipeline.spec.group_id)
    assert not pipeline.run("r2", ranges=Cursor(max_records=10)).found
    assert pipeline.output() == copies(20)
    reset = ["--group", pipeline.spec.group_id, "--to", "earliest", "--yes"]
    assert command(pipeline, "reset-offsets", *reset) == 0, capsys.readouterr().err


def test_what_is_not_signed_is_no_commit(signed):
    """Whatever transaction it is in, and whatever producer it names."""
    template = signed.run(**given(signed, "r1"))
    assert signed.run(**given(signed, "r1")).found
    forge_commit(signed, "r2", template)
    with pytest.raises(LedgerTampered, match="lacks only a signature"):
        signed.run(**given(signed, "r2", 10, 20))
    key = keys.run_record_key(keys.run_key(replace(signed.spec, **given(signed, "r2", 10, 20))))
    assert dismiss_record(signed.spec.deployment, key, routing=signed.spec.pipeline).done
    assert not signed.run(**given(signed, "r2", 10, 20)).found
    assert signed.output() == copies(20)


def test_what_is_signed_is_not_unmade(signed):
    """Another client's tombstones, garbage, cursor or identity do not count."""
    signed.run("c1", ranges=Cursor(max_records=10))
    signed.run(**given(signed, "r1"))
    pipe, group = signed.spec.pipeline, signed.spec.group_id
    forge_as_somebody(signed, record_of(signed, "r1"), None, pipe)
    forge_as_somebody(signed, record_of(signed, "r1"), b"", pipe)
    forge_as_somebody(signed, record_of(signed, "r1"), b"garbage", pipe)
    forge_as_somebody(signed, keys.cursor_key(group), None, group)
    forge_as_somebody(signed, keys.LEDGER_IDENTITY_KEY, b"{}", keys.LEDGER_IDENTITY_ROUTING)
    assert signed.run(**given(signed, "r1")).found
    assert not signed.run("c2", ranges=Cursor(max_records=10)).found
    assert signed.output() == sorted([*copies(10), *copies(20)])


def test_a_signed_record_cannot_be_written_again(signed):
    """Replayed with its signature, an old cursor would make a pipeline read its input again."""
    signed.run("c1", ranges=Cursor(max_records=10))
    key, group = keys.cursor_key(signed.spec.group_id), signed.spec.group_id
    (old,) = [
        record
        for record in read_topic(signed.spec.kafka, signed.spec.ledger.topic)
        if record.key == key.encode()
    ]
    assert [name for name, _ in old.headers] == ["airflow-eos-signature"]
    signed.run("c2", ranges=Cursor(max_records=10))
    forge_as_somebody(signed, key, old.value, group, list(old.headers))
    assert not signed.run("c3", ranges=Cursor(max_records=10)).found
    assert signed.output() == copies(30)


def test_another_key_is_none_and_a_key_can_be_changed(signed):
    """The new key signs; the old one is accepted until it is removed."""
    key = signed.spec.ledger.key
    assert not signed.run(**given(signed, "r1")).found
    with pytest.raises(LedgerTampered):
        keyed(signed, OTHER_KEY).run(**given(signed, "r1"))
    both = f"{signed.spec.ledger.key} {key}"
    assert keyed(signed, both).run(**given(signed, "r1")).found
    assert not signed.run(**given(signed, "r2", 10, 20)).found
    assert keyed(signed, key).run(**given(signed, "r1")).found
    with pytest.raises(LedgerTampered):
        signed.run(**given(signed, "r2", 10, 20))
    assert keyed(signed, "").run(**given(signed, "r2", 10, 20)).found


def test_a_ledger_in_use_gets_a_key(pipeline):
    """Its records count unsigned once an administrator confirms them; later unsigned ones do not."""
    template = pipeline.run(**given(pipeline, "r1"))
    with pytest.raises(ConfigurationError, match="no key to sign with"):
        sign_ledger(pipeline.spec.deployment)
    keyed(pipeline, KEY)
    with pytest.raises(LedgerTampered, match="run `airflow eos sign`"):
        pipeline.run(**given(pipeline, "r1"))
    sign_ledger(pipeline.spec.deployment, execute=False)
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r1"))
    sign_ledger(pipeline.spec.deployment)
    assert pipeline.run(**given(pipeline, "r1")).found
    forge_commit(pipeline, "r2", template)
    forge_as_somebody(pipeline, keys.SIGNED_KEY, b'{"v":1,"from":{"0":999,"1":999}}', "")
    with pytest.raises(LedgerTampered):
        pipeline.run(**given(pipeline, "r2", 10, 20))
    assert not pipeline.run(**given(pipeline, "r3", 20, 30)).found
    assert pipeline.run(**given(pipeline, "r3", 20, 30)).found


def forge_signed_commit(pipeline, victim, template, topic_id):
    """As :func:`forge_commit`, signed as in a ledger of this topic id."""
    key, value = forged_record(pipeline, victim, template)
    name, ledger = json.loads(value)["producer"]["transactional_id"], pipeline.spec.ledger

    def named(his):
        return naming_its_producer(value, {**his, "transactional_id": name})

    def headers(text, partition):
        his = json.loads(text)["producer"]
        producer = his["producer_id"], his["producer_epoch"]
        signed = SignedRecord(ledger.topic, topic_id, partition, producer, key, text)
        signature = signed.digest(KEY.encode())
        return [(HEADER, signature)]

    forge_as_somebody(pipeline, key, named, pipeline.spec.pipeline, headers)


def test_a_signed_record_of_another_cluster_is_no_commit(signed):
    """It may name the same topic, and the same producer id: each cluster assigns its own."""
    template = signed.run(**given(signed, "r1"))
    forge_signed_commit(signed, "r2", template, "AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(LedgerTampered, match="lacks only a signature"):
        signed.run(**given(signed, "r2", 10, 20))
    assert signed.output() == copies(10)


def test_the_same_record_signed_for_this_topic_is_a_commit(signed):
    """Counter-test: only the topic id differs."""
    template = signed.run(**given(signed, "r1"))
    with ControlPlane(signed.spec) as control:
        topic_id = control.ledger.topic_id
    forge_signed_commit(signed, "r2", template, topic_id)
    assert signed.run(**given(signed, "r2", 10, 20)).found
