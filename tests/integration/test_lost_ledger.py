"""A ledger that was deleted, recreated or truncated, on a real broker: it must not report "not committed"."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.broker.transactions import KafkaSession
from airflow_eos.cli import definition
from airflow_eos.cli.main import main
from airflow_eos.engine.committed import find_committed_by_key
from airflow_eos.exceptions import LedgerMissing, LedgerReplaced, LedgerTampered, LedgerTruncated
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Explicit, Interval, OffsetRange, PartitionInterval, TopicPartition
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.queries import create_ledger
from airflow_eos.recordbatch.partitioner import partitions_for
from airflow_eos.run.states import State
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.offsets import list_offsets
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.readers import read_topic
from tests.support.local_runs import Pipeline
from tests.support.missing_topics import missing_at_once
from tests.support.patience import eventually, wait_until
from tests.support.topic_settings import COMPACTED_SOON, change_topic
from tests.support.wire_requests import fetch_range

DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)
RECORDS = 50


def between(start: int, end: int) -> Interval:
    return Interval(DAY + dt.timedelta(minutes=start), DAY + dt.timedelta(minutes=end))


class Timed(Pipeline):
    """Records of four intervals of five minutes, under a prefix of its own."""

    def __init__(self, kafka, **changes):
        super().__init__(kafka, partitions=1, prefix=f"eos-{uuid.uuid4().hex[:8]}", **changes)
        for minute in (1, 6, 11, 16):
            stamp = int((DAY + dt.timedelta(minutes=minute)).timestamp() * 1000)
            self.publish([f"m{minute}r{n}" for n in range(RECORDS)], timestamp=stamp)

    def interval(self, number, **changes):
        return self.run(f"i{number}", ranges=between(5 * number, 5 * number + 5), **changes)

    def given(self, run_id, start, **changes):
        return self.run(run_id, ranges=Explicit((OffsetRange(self.source, 0, start, start + 10),)), **changes)

    def delete_group(self):
        """Delete the group, as if all offsets had expired."""
        group = f"{self.spec.group_id}.runs"
        self.kafka.admin().delete_consumer_groups([group])[group].result()

    def has_ledger(self):
        return self.ledger in self.kafka.admin().list_topics(timeout=30).topics

    def make_ledger_by_hand(self):
        self.kafka.create_topic(self.ledger, partitions=2, config={"cleanup.policy": "compact"})

    def configure_ledger(self, **settings):
        named = {key.replace("_", "."): value for key, value in settings.items()}
        change_topic(self.kafka.admin(), self.ledger, named)


@pytest.fixture
def timed(embedded_kafka):
    return Timed(embedded_kafka)


@pytest.fixture
def committed(timed):
    """Two intervals are committed."""
    assert [timed.interval(n).records_read for n in (0, 1)] == [RECORDS, RECORDS]
    return timed


def refuses_all(pipeline, expected, match=""):
    """New work, a cleared run and a retried one are refused; nothing is written."""
    before = len(pipeline.output())
    for attempt in (
        lambda: pipeline.interval(2),
        lambda: pipeline.interval(0, clear_number=1),
        lambda: pipeline.interval(1, try_number=2),
        lambda: pipeline.run(
            "p", ranges=PartitionInterval("k", between(10, 15)), pipeline=f"{pipeline.spec.pipeline}-p"
        ),
        lambda: pipeline.given("e", 0),
        lambda: pipeline.run("c", group_id=f"{pipeline.spec.group_id}.runs"),
        lambda: pipeline.interval(0, clear_number=1, on_committed="reprocess"),
    ):
        with pytest.raises(expected, match=match):
            attempt()
    assert len(pipeline.output()) == before


@pytest.mark.parametrize("offsets", ["kept", "expired"])
def test_a_deleted_ledger_is_not_made_again(committed, offsets):
    """Neither the next interval's first try nor a clear creates it, even if no committed offset names it."""
    committed.kafka.delete_topic(committed.ledger)
    if offsets == "expired":
        committed.delete_group()
    with missing_at_once():
        refuses_all(committed, LedgerMissing, "Restore")
    assert not committed.has_ledger()


@pytest.mark.parametrize("state", [State.CHECKED, State.STAGED])
def test_a_ledger_that_is_deleted_under_a_run_is_no_topic_to_create(timed, state):
    """After the fence, and with its record in the transaction: the advice is to restore it."""

    def entered(now):
        if now is state:
            timed.kafka.delete_topic(timed.ledger)

    with missing_at_once(), pytest.raises(LedgerMissing, match="Restore it, do not create it"):
        timed.run("c", on_state=entered)
    assert timed.output() == []


@pytest.mark.parametrize("state", [State.ASKED, State.STAGED])
def test_a_ledger_that_is_made_again_under_a_run_is_not_believed(timed, state):
    """It has lost what another try has committed meanwhile, and would lose what this one commits."""

    def entered(now):
        if now is state:
            if state is State.ASKED:
                timed.interval(0, try_number=2)
            timed.kafka.delete_topic(timed.ledger)
            timed.make_ledger_by_hand()

    with pytest.raises(LedgerReplaced, match="recreated meanwhile"):
        timed.interval(0, on_state=entered)
    assert len(timed.output()) == (RECORDS if state is State.ASKED else 0)


@pytest.mark.parametrize("offsets", ["kept", "expired"])
def test_a_ledger_made_again_by_hand_is_not_adopted(committed, offsets):
    """An empty topic under the ledger's name is a ledger that lost its runs."""
    committed.kafka.delete_topic(committed.ledger)
    committed.make_ledger_by_hand()
    if offsets == "expired":
        committed.delete_group()
    refuses_all(committed, LedgerReplaced, "Restore")


def test_init_makes_a_lost_ledger_again_only_when_told(committed):
    """Even then pipelines whose offsets name the old ledger are refused: they start over in another group."""
    committed.kafka.delete_topic(committed.ledger)
    deployment = committed.spec.deployment
    with missing_at_once(), pytest.raises(LedgerMissing, match="adopt-new"):
        create_ledger(deployment)
    assert not committed.has_ledger()
    create_ledger(deployment, adopt_new=True)
    refuses_all(committed, LedgerReplaced, "group_id")
    committed.interval(2, group_id=f"{committed.spec.group_id}-2")
    assert len(committed.output()) == 3 * RECORDS


def test_a_ledger_that_another_environment_made_again_is_refused(committed):
    """It has a valid identity, but the offsets of the first environment's group name the old topic."""
    committed.kafka.delete_topic(committed.ledger)
    create_ledger(Deployment(committed.spec.kafka, committed.spec.ledger, "another"))
    refuses_all(committed, LedgerReplaced, "group_id")


@pytest.mark.parametrize("how", ["DeleteRecords", "retention"])
def test_a_cut_ledger_partition_says_no_to_nothing(committed, how):
    """A remaining record counts as committed; a missing one may have been in the deleted part."""
    if how == "DeleteRecords":
        everything = [ClientPartition(committed.ledger, partition, -1) for partition in range(2)]
        assert not deleted(committed, everything), "brokers keep what is only compacted"
        committed.configure_ledger(cleanup_policy="compact,delete")
        wait_until(lambda: deleted(committed, everything))
    else:
        committed.configure_ledger(cleanup_policy="compact,delete", retention_ms="1", segment_ms="1")
    wait_until(lambda: is_cut(committed))
    statuses = {check.name: check.status for check in examine(options_for(committed))}
    assert (statuses["ledger records"], statuses["ledger settings"]) == ("fail", "fail")
    before = committed.output()
    for attempt in (
        lambda: committed.interval(0, clear_number=1),
        lambda: committed.interval(1, try_number=2),
        lambda: committed.interval(2),
        lambda: committed.given("e", 0),
        lambda: committed.run("c"),
        lambda: committed.interval(0, clear_number=1, on_committed="reprocess"),
    ):
        with pytest.raises(LedgerTruncated, match="starts at"):
            attempt()
    assert committed.output() == before


def test_a_yes_that_a_cut_partition_still_holds_is_a_yes(timed):
    """The record of i0 is deleted, that of i1 remains; the ledger's identity is in another partition."""
    timed.spec = replace(timed.spec, pipeline=a_pipeline_in_partition(1, timed.ledger))
    tp = TopicPartition(timed.ledger, 1)
    timed.interval(0)
    with Link(timed.spec.kafka) as link:
        cluster = KafkaCluster(link)
        end = cluster.log_ends([tp])[tp]
    timed.interval(1)
    timed.configure_ledger(cleanup_policy="compact,delete")
    cut = [ClientPartition(timed.ledger, 1, end)]
    wait_until(lambda: deleted(timed, cut))
    assert timed.interval(1, clear_number=1).found
    assert timed.interval(1, try_number=2).found
    for attempt in (lambda: timed.interval(0, clear_number=1), lambda: timed.interval(2)):
        with pytest.raises(LedgerTruncated, match=f"partition 1 starts at offset {end}"):
            attempt()
    assert len(timed.output()) == 2 * RECORDS


def a_pipeline_in_partition(wanted, ledger):
    names = [f"pipe-{uuid.uuid4().hex[:8]}" for _ in range(50)]
    placed = partitions_for(
        len(names), 2, topic=ledger, key=pa.array([n.encode() for n in names], pa.binary())
    )
    return next(name for name, partition in zip(names, placed, strict=True) if int(partition) == wanted)


def deleted(pipeline, partitions):
    """Delete records; return False if the broker does not know the new policy yet."""
    try:
        for future in pipeline.kafka.admin().delete_records(partitions).values():
            future.result()
    except KafkaException as refused:
        if "POLICY_VIOLATION" not in str(refused):
            raise
        return False
    return True


def options_for(pipeline):
    return DoctorOptions(pipeline.spec.deployment)


def test_doctor_tells_a_lost_ledger_from_a_new_one(committed):
    """It names the evidence of the lost one, and the remedy."""
    with missing_at_once():
        new = {
            check.name: check
            for check in examine(
                replace(
                    options_for(committed), deployment=replace(committed.spec.deployment, prefix="another")
                )
            )
        }
        assert {check.name: check.status for check in examine(options_for(committed))}[
            "ledger records"
        ] == "ok"
        committed.kafka.delete_topic(committed.ledger)
        lost = {check.name: check for check in examine(options_for(committed))}
    assert new["ledger"].status == "ok"
    assert (lost["ledger"].status, "used-ledger" in lost["ledger"].found) == ("fail", True)
    assert "--adopt-new" in lost["ledger"].advice


COMMANDS = {
    "status": (),
    "ledger": (),
    "verify": ("--pipeline", "{pipeline}"),
    "repair": ("--yes",),
    "plan": ("--pipeline", "{pipeline}", "--group", "{group}", "--topic", "{source}"),
    "prune": ("--before", "2026-01-01", "--yes"),
    "index": (),
    "dismiss": ("--key", "run:k", "--routing", "{pipeline}", "--yes"),
    "sign": ("--yes", "--ledger-key-file", "{key_file}"),
    "reset-offsets": ("--group", "{group}", "--topic", "{source}", "--to", "earliest", "--yes"),
}
OTHER_COMMANDS = {"abort", "doctor", "init"}
"""``abort`` needs no ledger, the others have their own tests here."""
WHATEVER_ITS_IDENTITY = {"dismiss", "sign"}
"""Commands for a ledger with an untrusted identity: overwritten by another client, or unsigned."""


@pytest.mark.parametrize("how", ["deleted", "recreated by hand"])
def test_no_command_advises_to_recreate_a_lost_ledger(committed, how, tmp_path, capsys):
    """Nor does a sensor wait for a first run; without evidence of an earlier ledger, the advice is `init`."""
    committed.kafka.delete_topic(committed.ledger)
    if how == "recreated by hand":
        committed.make_ledger_by_hand()
    spec = committed.spec
    key_file = tmp_path / "key"
    key_file.write_text("0123456789abcdef")
    key_file.chmod(0o600)
    names = {
        "pipeline": spec.pipeline,
        "group": spec.group_id,
        "source": committed.source,
        "key_file": key_file,
    }

    def error(command, prefix):
        flags = ["--bootstrap-servers", committed.kafka.bootstrap_servers, "--ledger-topic", committed.ledger]
        options = [option.format(**names) for option in COMMANDS[command]]
        assert main([command, *flags, "--prefix", prefix, "--output", "json", *options]) == 1, command
        return json.loads(capsys.readouterr().out)["error"]

    with missing_at_once():
        for command in COMMANDS if how == "deleted" else COMMANDS.keys() - WHATEVER_ITS_IDENTITY:
            failure = error(command, spec.prefix)
            assert failure["type"] == "LedgerReplaced", (command, failure)
            assert "it was deleted or re-created. Restore it" in failure["message"], command
        assert error("status", "another")["type"] == "LedgerMissing"
        with pytest.raises(LedgerReplaced, match="Restore"):
            find_committed_by_key(spec.deployment, pipeline=spec.pipeline, run_key="k")
    if how == "deleted":
        assert not committed.has_ledger()
    else:
        with Link(spec.kafka) as link:
            cluster = KafkaCluster(link)
            ends = cluster.log_ends([TopicPartition(committed.ledger, number) for number in range(2)])
        assert set(ends.values()) == {0}


def test_every_command_is_asked_behind_a_lost_ledger():
    """The list covers new commands, too."""
    assert {command.name for command in definition.COMMANDS if command.cluster} == {
        *COMMANDS,
        *OTHER_COMMANDS,
    }


def test_compaction_never_moves_the_log_start(embedded_kafka):
    """Not even if the first records, and then all, are removed: only deletion moves it."""
    name = f"compacted-{uuid.uuid4().hex[:8]}"
    embedded_kafka.create_topic(name, partitions=1, config=COMPACTED_SOON)
    producer = Producer({**embedded_kafka.client_config(), "linger.ms": 0})
    tp = TopicPartition(name, 0)

    def first_offset():
        """Return the offset of the first remaining record, after one more that rolls the segment."""
        producer.produce(name, key="k", value=None)
        assert producer.flush(30) == 0
        with BrokerConnections(ClientConfig.of(embedded_kafka.client_config())) as connections:
            end = list_offsets(connections, [tp], "latest")[tp]
            assert list_offsets(connections, [tp], "earliest")[tp] == 0
            batches = fetch_range(connections, name, 0, 0, end)
            return min(int(batch.offset[0]) for batch in batches if len(batch))

    eventually(first_offset, lambda offset: offset > 0, seconds=90, pause=1)


def test_a_ledger_in_use_is_remembered_longer_than_the_id_that_pinned_it():
    """Ids expire soon here: each run renews the evidence. Long after the last run there is none."""
    config = {
        "transactional.id.expiration.ms": "8000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with EmbeddedKafka(broker_config=config) as kafka:
        pipeline = Timed(kafka)
        pinning = keys.ledger_transactional_id(pipeline.spec.prefix, pipeline.ledger)
        witness = keys.ledger_witness_id(pipeline.spec.prefix, pipeline.ledger)
        pipeline.interval(0)
        with Link(pipeline.spec.kafka) as link:
            cluster = KafkaCluster(link)

            def pin_is_forgotten():
                assert pipeline.interval(0).found
                assert cluster.describe_transaction(witness) is not None
                return cluster.describe_transaction(pinning) is None

            eventually(pin_is_forgotten, bool, seconds=60, pause=0.5)
            pipeline.kafka.delete_topic(pipeline.ledger)
            pipeline.make_ledger_by_hand()
            pipeline.delete_group()
            with pytest.raises(LedgerReplaced, match="used-ledger"):
                pipeline.interval(2)
            wait_until(lambda: cluster.describe_transaction(witness) is None)
        with pytest.raises(LedgerMissing, match="init"):
            pipeline.interval(0, clear_number=1)
        assert pipeline.interval(2).records_read == RECORDS  # stated in docs/guarantees/limits.md


def test_brokers_that_create_topics_on_demand_make_no_ledger():
    """Such a topic would delete its records after a week. The doctor initialises an id without a ledger."""
    with EmbeddedKafka(broker_config={"auto.create.topics.enable": "true"}) as kafka:
        pipeline = Pipeline(kafka)
        with missing_at_once():
            checks = {check.name: check for check in examine(DoctorOptions(pipeline.spec.deployment))}
        assert checks["transactional id"].status == "ok"
        assert pipeline.ledger not in kafka.admin().list_topics(timeout=30).topics
        pipeline.publish(["a"])
        assert pipeline.run().records_written == 1
        checks = {check.name: check for check in examine(DoctorOptions(pipeline.spec.deployment))}
        assert checks["ledger settings"].status == "ok"


def is_cut(pipeline):
    """Return whether every partition of the ledger that ever had a record has lost some."""
    partitions = [TopicPartition(pipeline.ledger, partition) for partition in range(2)]
    with Link(pipeline.spec.kafka) as link:
        cluster = KafkaCluster(link)
        starts, ends = cluster.log_starts(partitions), cluster.log_ends(partitions)
    return all(starts[tp] > 0 for tp in partitions if ends[tp])


class Killed(BaseException):
    """The process dies."""


def die_at(call, pipeline, monkeypatch):
    """Die in the very first transaction: the pin of the ledger's identity."""

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, call, die)
        with pytest.raises(Killed):
            pipeline.interval(0)


@pytest.mark.parametrize("life", [{"try_number": 2}, {"try_number": 3}, {"clear_number": 1, "try_number": 2}])
def test_a_first_run_that_died_before_the_pin_is_retried_without_help(timed, monkeypatch, life):
    """The topic exists without an identity, and no ledger was ever used."""
    die_at("begin", timed, monkeypatch)
    assert timed.has_ledger()
    assert timed.interval(0, **life).records_read == RECORDS
    assert len(timed.output()) == RECORDS


def test_a_first_run_that_died_before_the_topic_is_retried_without_help(timed):
    """Although it is a second try, there is no evidence of an earlier ledger."""
    assert timed.interval(0, try_number=2).records_read == RECORDS


def test_a_first_run_that_died_in_its_pin_is_retried_without_help(timed, monkeypatch):
    """The pin's transaction is open and its record written: the retry aborts it and pins again."""
    die_at("commit", timed, monkeypatch)
    assert timed.interval(0, try_number=2).records_read == RECORDS


def test_a_cleared_run_makes_no_ledger_where_nobody_began_one(timed):
    """It ran before: all evidence of its ledger may have expired."""
    with missing_at_once(), pytest.raises(LedgerMissing, match="init"):
        timed.interval(0, clear_number=1)
    timed.make_ledger_by_hand()
    with pytest.raises(LedgerMissing, match="init"):
        timed.interval(0, clear_number=1)
    create_ledger(timed.spec.deployment)
    assert timed.interval(0, clear_number=1).records_read == RECORDS


def test_a_group_of_another_environment_is_named_as_a_cause(embedded_kafka):
    """The group's ledger is not lost: the new environment has the same Dags, another prefix and ledger."""
    pipeline = Timed(embedded_kafka)
    pipeline.interval(0)
    own = replace(pipeline.spec.ledger, topic=f"{pipeline.ledger}-staging")
    staging = {"prefix": f"{pipeline.spec.prefix}-staging", "ledger": own}
    with (
        missing_at_once(),
        pytest.raises(LedgerMissing, match=r"another environment.* a group_id of its own"),
    ):
        pipeline.interval(0, **staging)
    assert (
        pipeline.interval(0, **staging, group_id=f"{pipeline.spec.group_id}-staging").records_read == RECORDS
    )
    assert pipeline.interval(1).records_read == RECORDS


def test_the_copy_that_a_mirror_makes_of_a_ledger_proves_nothing(embedded_kafka):
    """It proves no run, and no run starts with it; once it is deleted, the cluster gets its own ledger."""
    pipeline, copy = Pipeline(embedded_kafka, partitions=1), f"copy-{uuid.uuid4().hex[:8]}"
    pipeline.publish(["a"])
    pipeline.run("r1")
    embedded_kafka.create_topic(copy, partitions=2, config={"cleanup.policy": "compact"})
    mirror = Producer(embedded_kafka.client_config())
    for record in read_topic(embedded_kafka.client_config(), pipeline.ledger):
        mirror.produce(copy, key=record.key, value=record.value, partition=record.partition)
    assert mirror.flush(30) == 0
    changes = {
        "ledger": replace(pipeline.spec.ledger, topic=copy),
        "group_id": f"{pipeline.spec.group_id}-there",
    }
    with pytest.raises(LedgerTampered, match=r"ledger:identity.* a mirror made .*#a-mirrored-cluster"):
        pipeline.run("r1", **changes)
    embedded_kafka.delete_topic(copy)
    spec = pipeline.changed("r2", **changes)
    create_ledger(spec.deployment)
    offsets = {TopicPartition(pipeline.source, 0): 1}
    reset_cursor(
        spec.deployment,
        Reset(spec.group_id, offsets=offsets, topics=[pipeline.source], pipeline=spec.pipeline),
    )
    assert pipeline.run("r2", **changes).records_read == 0
