"""Commands that write to the ledger during runs: no run is repeated, and no record is lost."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from airflow_eos.engine import control_plane
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    ConfigurationError,
    CursorMoved,
    EosError,
    GroupOwned,
    LedgerTampered,
    NoStartingPoint,
    OutcomeUnknown,
)
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, TopicPartition
from airflow_eos.operations.cursor_reset import Reset, reset_cursor
from airflow_eos.operations.group_progress import progress_of
from airflow_eos.operations.queries import create_ledger, ledger_records
from airflow_eos.operations.upkeep import dismiss_record, index_ledger, prune_ledger, sign_ledger
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka
from tests.integration.test_forged_ledger import KEY, compact, copies, forge, given, keyed
from tests.support.cases import rest_in_chaos
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import Pipeline

COUNT = 20
DAY = dt.timedelta(days=1)


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    filled = Pipeline(embedded_kafka, partitions=1)
    filled.publish([f"r{n}" for n in range(COUNT)], timestamp=int((now() - DAY / 24).timestamp() * 1000))
    return filled


def now():
    return dt.datetime.now(dt.timezone.utc)


def at(steps):
    """Call each function when the run enters its state."""
    return lambda entered: steps.pop(entered)() if entered in steps else None


WORKS = {
    "explicit": lambda pipeline: Explicit((OffsetRange(pipeline.source, 0, 0, COUNT),)),
    "cursor": lambda pipeline: Cursor(),
    "interval": lambda pipeline: Interval(now() - DAY / 12, now(), allowed_lateness=dt.timedelta(0)),
}


@pytest.mark.parametrize("state", [State.WRITTEN, State.STAGED, State.PROVEN])
@pytest.mark.parametrize("work", WORKS)
def test_a_key_is_not_dismissed_under_a_run_at_work(pipeline, work, state):
    """The run's record stays the last value of the key, or the command refuses."""
    changes = {"ranges": WORKS[work](pipeline)}
    spec = pipeline.changed("r1", **changes)
    key = keys.run_record_key(keys.run_key(spec))
    answers = []

    def dismiss():
        try:
            answers.append(dismiss_record(spec.deployment, key, routing=spec.pipeline))
        except EosError as refusal:
            answers.append(refusal)

    steps = {State.PLANNED: lambda: forge(pipeline, key, "{}", spec.pipeline), state: dismiss}
    assert not pipeline.run("r1", on_state=at(steps), **changes).found
    assert len(answers) == 1
    if state is not State.WRITTEN:
        assert isinstance(answers[0], OutcomeUnknown)
        assert "is at work" in str(answers[0])
    assert pipeline.run("r1", clear_number=1, try_number=2, on_committed="skip", **changes).found
    assert pipeline.output() == copies(COUNT)


def test_commands_take_the_time_outs_that_the_brokers_allow(embedded_kafka, monkeypatch):
    """A run with such a time-out is refused; a command has no setting for it, so it takes the maximum."""
    for name in ("TRANSACTION_TIMEOUT", "INDEX_TRANSACTION_TIMEOUT"):
        monkeypatch.setattr(control_plane, name, dt.timedelta(hours=2))  # Kafka's default is 15 minutes
    deployment = Pipeline(embedded_kafka, partitions=1).spec.deployment
    assert create_ledger(deployment).partitions == 2
    assert len(index_ledger(deployment)) == 2


def unsigned_prune(pipeline):
    prune_ledger(pipeline.spec.deployment, now() - 2 * DAY)


def unsigned_dismiss(pipeline):
    key = keys.run_record_key(keys.cursor_run_key(pipeline.spec.pipeline, "r1"))
    dismiss_record(pipeline.spec.deployment, key, routing=pipeline.spec.pipeline)


def unsigned_reset(pipeline):
    spec = pipeline.spec
    reset_cursor(spec.deployment, Reset(spec.group_id, to="earliest"))


def unsigned_index(pipeline):
    index_ledger(pipeline.spec.deployment)


def unsigned_adoption(pipeline):
    create_ledger(pipeline.spec.deployment, adopt_new=True)


def unsigned_run(pipeline):
    pipeline.run("r3", ranges=Cursor())


@pytest.mark.parametrize("begun", ["with a key", "in use before"])
@pytest.mark.parametrize(
    "hand",
    [unsigned_prune, unsigned_dismiss, unsigned_reset, unsigned_index, unsigned_adoption, unsigned_run],
)
def test_whoever_lacks_the_key_changes_nothing(pipeline, hand, begun):
    """Its unsigned records are ignored, and would replace ours when the log is compacted."""
    if begun == "with a key":
        keyed(pipeline, KEY)
    pipeline.run("r1", ranges=Cursor(max_records=10))
    keyed(pipeline, KEY)
    if begun == "in use before":
        sign_ledger(pipeline.spec.deployment)
    pipeline.run("r2", ranges=Cursor(max_records=5))
    spec = pipeline.spec
    before = ledger_records(spec.deployment)
    keyed(pipeline, "")
    with pytest.raises(ConfigurationError, match=r"is signed.*\[eos\] ledger_key"):
        hand(pipeline)
    keyed(pipeline, KEY)
    if hand is unsigned_prune:
        compact(pipeline)
    assert ledger_records(spec.deployment) == before
    for run_id in ("r1", "r2"):
        assert pipeline.run(run_id, ranges=Cursor(), clear_number=1, on_committed="skip").found
    assert not pipeline.run("r4", ranges=Cursor()).found
    assert pipeline.output() == copies(COUNT)


def test_a_repetition_that_was_committed_answers_though_its_run_was_pruned(pipeline, monkeypatch):
    """The run is pruned during its reprocessing, whose own record stays, and answers a retry."""
    monkeypatch.setattr("airflow_eos.operations.upkeep.MIN_AGE", -DAY)
    spec = pipeline.spec
    pipeline.run(**given(pipeline, "r1"))
    pipeline.run(**given(pipeline, "r2", 10, 20))

    def prune():
        assert prune_ledger(spec.deployment, now() + DAY / 24).pipelines

    again = {**given(pipeline, "r1"), "clear_number": 1, "on_committed": "reprocess"}
    assert not pipeline.run(**again, on_state=at({State.PLANNED: prune})).found
    retry = pipeline.run(**again, try_number=2)
    assert retry.found
    assert keys.reprocessing_number(retry.run_key) == 1
    assert pipeline.output() == sorted([*copies(20), *copies(10)])


def test_a_run_whose_clock_is_behind_is_not_pruned(pipeline, monkeypatch):
    """Its record is three days old, the broker's timestamp only a minute: pruning requires both to be old."""
    with monkeypatch.context() as behind:
        behind.setattr(control_plane, "utc_now", lambda: now() - 3 * DAY)
        for run_id in ("r1", "r2"):
            pipeline.run(**given(pipeline, run_id))
    spec = pipeline.spec
    done = prune_ledger(spec.deployment, now() - 2 * DAY)
    assert done.pipelines == {}
    assert pipeline.run(**given(pipeline, "r1"), try_number=2).found


def test_a_command_whose_clock_is_ahead_prunes_nothing(pipeline, monkeypatch):
    """By its clock all runs are old; the broker's timestamps of the tombstones show how far it is ahead."""
    for run_id in ("r1", "r2"):
        pipeline.run(**given(pipeline, run_id))
    spec = pipeline.spec
    monkeypatch.setattr("airflow_eos.operations.upkeep.utc_now", lambda: now() + 3 * DAY)
    with pytest.raises(ConfigurationError, match="by the clock of the broker"):
        prune_ledger(spec.deployment, now() + DAY)
    assert pipeline.run(**given(pipeline, "r1"), try_number=2).found


def test_a_run_without_the_key_beside_sign_loses_nothing(pipeline):
    """Its record is unsigned and newer than the signature of the ledger: signing again makes it count."""
    pipeline.run("r1", ranges=Cursor(max_records=5))
    spec = replace(pipeline.spec, ledger=replace(pipeline.spec.ledger, key=KEY))

    def sign():
        sign_ledger(spec.deployment)

    pipeline.run("r2", ranges=Cursor(max_records=10), on_state=at({State.PLANNED: sign}))
    keyed(pipeline, KEY)
    advice = rf"'cursor:{spec.group_id}' at offset \d+ .* lacks only a signature.* `airflow eos sign`"
    with pytest.raises(CursorMoved, match=advice) as refusal:
        pipeline.run("r3", ranges=Cursor())
    assert "reset-offsets" not in str(refusal.value)
    with pytest.raises(LedgerTampered, match="`airflow eos sign`"):
        pipeline.run("r2", ranges=Cursor(max_records=10), try_number=2)
    sign()
    assert pipeline.run("r2", ranges=Cursor(max_records=10), try_number=2).found
    pipeline.run("r3", ranges=Cursor())
    assert pipeline.output() == copies(COUNT)


@pytest.mark.parametrize("state", rest_in_chaos(1, [State.STAGED, State.PROVEN]))
def test_nothing_is_signed_while_a_run_has_its_record_in_the_ledger(pipeline, state):
    """It would be undecided whether the run's record is before or after the signature."""
    pipeline.run("r1", ranges=Cursor(max_records=5))
    spec = replace(pipeline.spec, ledger=replace(pipeline.spec.ledger, key=KEY))

    def sign():
        with pytest.raises(OutcomeUnknown, match="open transaction"):
            sign_ledger(spec.deployment)

    pipeline.run("r2", ranges=Cursor(max_records=10), on_state=at({state: sign}))
    sign_ledger(spec.deployment)
    keyed(pipeline, KEY)
    assert pipeline.run("r2", ranges=Cursor(max_records=10), try_number=2).found
    pipeline.run("r3", ranges=Cursor())
    assert pipeline.output() == copies(COUNT)


def test_a_secret_that_is_taken_away_is_named(pipeline):
    """Records that it has signed no longer count: restore it, or sign the ledger again."""
    keyed(pipeline, KEY).run("r1", ranges=Cursor(max_records=5))
    new = "another-secret-of-this-ledger"
    keyed(pipeline, f"{new} {KEY}").run("r2", ranges=Cursor(max_records=5))
    keyed(pipeline, new)
    with pytest.raises(LedgerTampered, match=r"taken out of it.*put it back behind the new one"):
        pipeline.run("r3", ranges=Cursor())
    sign_ledger(pipeline.spec.deployment)
    pipeline.run("r3", ranges=Cursor())
    assert pipeline.output() == copies(COUNT)


def test_mapped_tasks_get_a_position_before_their_first_run(embedded_kafka):
    """The refusal advises it: a whole cursor's position would be refused, and the group unusable."""
    pipeline = Pipeline(embedded_kafka, partitions=2)
    create_ledger(pipeline.spec.deployment)
    for partition in (0, 1):
        pipeline.publish([f"p{partition}r{n}" for n in range(4)], partition=partition)
    fails = {"ranges": Cursor(start="fail")}
    with pytest.raises(NoStartingPoint, match="`airflow eos reset-offsets` --mapped"):
        pipeline.run("r1", source_partition=0, **fails)
    group, owner = pipeline.spec.group_id, pipeline.spec.pipeline
    places = {TopicPartition(pipeline.source, 0): 1, TopicPartition(pipeline.source, 1): 3}
    given_places = Reset(group, offsets=places, pipeline=owner, mapped=True)
    reset_cursor(pipeline.spec.deployment, given_places)
    reset_cursor(pipeline.spec.deployment, Reset(group, to="cursor"))
    assert [pipeline.run("r1", source_partition=n, **fails).records_read for n in (0, 1)] == [3, 1]
    with pytest.raises(GroupOwned, match="layout 'mapped'"):
        pipeline.run("r2")
    pipeline.run("r3", group_id=f"{group}-whole")
    with pytest.raises(GroupOwned, match="is whole, and a reset does not change that"):
        reset_cursor(pipeline.spec.deployment, Reset(f"{group}-whole", to="cursor", mapped=True))


def test_a_partition_that_no_mapped_task_has_read_holds_no_reset(embedded_kafka):
    """That partition has no position to go back to; the others have."""
    pipeline = Pipeline(embedded_kafka, partitions=2)
    pipeline.publish([f"r{n}" for n in range(3)], partition=1)
    pipeline.run("r1", source_partition=1, ranges=Cursor(max_records=2))
    commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 0, partition=1)
    with pytest.raises(CursorMoved):
        pipeline.run("r2", source_partition=1)
    for execute in (False, True):
        reset = Reset(pipeline.spec.group_id, to="cursor")
        (move,) = reset_cursor(pipeline.spec.deployment, reset, execute=execute).moves
        assert (move.topic_partition.partition, move.offset) == (1, 2)
    assert pipeline.run("r2", source_partition=1).records_read == 1


def test_a_topic_that_runs_no_longer_read_holds_no_command(pipeline):
    """The cursor keeps the deleted topic: the other topics show their lag and can be reset."""
    spec, retired = pipeline.spec, f"{pipeline.source}-retired"
    pipeline.kafka.create_topic(retired, partitions=1)
    pipeline.run("r1", source_topics=(pipeline.source, retired), ranges=Cursor(max_records=5))
    pipeline.run("r2", ranges=Cursor(max_records=5))
    admin = pipeline.kafka.admin()
    admin.delete_topics([retired])[retired].result()

    def progress():
        with ControlPlane(spec) as control:
            key = keys.cursor_key(spec.group_id)
            cursor = CursorRecord.from_json(control.authority.peek([key], routing=spec.group_id)[key], key)
            return progress_of(control, spec.group_id, cursor).to_dict()

    assert progress()["lag"] == COUNT - 10
    commit_offset(spec.kafka, spec.group_id, pipeline.source, 1)
    with pytest.raises(CursorMoved):
        pipeline.run("r3")
    assert "CursorMoved" in progress()["unknown"]
    (move,) = reset_cursor(spec.deployment, Reset(spec.group_id, to="cursor")).moves
    assert (move.topic_partition.topic, move.offset) == (pipeline.source, 10)
    pipeline.run("r3")
    assert pipeline.output() == copies(COUNT)
