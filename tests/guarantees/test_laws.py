"""Laws of a run, on a real broker, that the other experiments do not test one by one.

Which test fails without which law: :mod:`tests.guarantees.without_law`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import json

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import CursorMoved, DuplicateReceipt, RunFailed, TimeoutsInconsistent
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.run import laws
from airflow_eos.run.states import State
from airflow_eos.spark import send_task
from airflow_eos.spark.errors import TaskError
from airflow_eos.spark.sealed_rows import SCHEMA
from airflow_eos.spark.send_task import SendTask
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import end_txn
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from tests.guarantees import without_law
from tests.guarantees.experiment import given, judged
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import LocalDataPlane, Paused
from tests.support.markers import wait_for_markers


def test_every_law_has_a_removal_that_names_its_tests():
    """The list covers each function of the laws, and every test that it names exists."""
    functions = {
        name
        for name, value in vars(laws).items()
        if callable(value) and getattr(value, "__module__", "") == laws.__name__ and name != "last_sequence"
    }
    targets = [removal.target.split(":") for removal in without_law.REMOVALS.values()]
    removed = {name for module, name in targets if module == laws.__name__}
    assert removed == functions
    for removal in without_law.REMOVALS.values():
        for test in removal.tests:
            file, _, name = test.partition("::")
            text = (without_law.ROOT / file).read_text()
            name, case, _ = name.partition("[")
            assert f"def {name}(" in text if name else text
            # A parameter that is added to a test changes the names of its cases.
            assert not case or test.startswith(without_law.SEARCH), test
    page = (without_law.ROOT / "docs" / "guarantees" / "laws.md").read_text()
    assert all(without_law.row(name) in page for name in without_law.REMOVALS)
    named = {removal.law for removal in without_law.REMOVALS.values()}
    assert named == {*(str(n) for n in range(1, 11)), "12", "S5"}  # S5 is a guarantee, not a law


@pytest.mark.parametrize("name", without_law.REMOVALS)
def test_what_stands_in_for_a_law_can_be_called_like_it(name):
    """A parameter that is added to a law would break every test before it can judge."""
    calls = []
    without_law.remove(name, lambda owner, law, instead: calls.append((getattr(owner, law), instead)))
    parameters = inspect.signature(calls[0][0]).parameters.values()
    by_name = {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY}
    inspect.signature(calls[0][1]).bind(*[each for each in parameters if each.name not in by_name], **by_name)


@pytest.mark.parametrize(
    ("phase", "error", "judged"),
    [
        ("call", AssertionError("31 == 35"), True),
        ("call", CursorMoved("another error than the test expects"), True),
        ("call", pytest.fail.Exception("DID NOT RAISE <class 'CursorMoved'>"), True),
        ("setup", AssertionError("no broker"), False),
        ("teardown", AssertionError("a thread is left"), False),
        ("call", EmbeddedKafkaError("no broker"), False),
        ("call", pytest.fail.Exception("Timeout (>300.0s) from pytest-timeout."), False),
        ("call", TypeError("the removal takes no argument 'answer'"), False),
    ],
    ids=str,
)
def test_a_removal_counts_only_where_the_test_itself_finds_the_result_wrong(phase, error, judged):
    """A test that breaks before it can judge says nothing about the removed law."""
    assert (without_law.kind_of_failure(phase, error) == without_law.JUDGED) is judged


def test_two_receipts_for_one_partition_abort_the_run(experiment):
    """Law 1: a run with receipts of two owners for one partition is not committed."""
    experiment.feed(10)

    class TwoOwners(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            receipts = list(super().send(sealed, identity, timeout))
            return [*receipts, receipts[0]]

    with pytest.raises(RunFailed) as failed:
        experiment.run(data=TwoOwners, max_send_attempts=1)
    assert isinstance(failed.value.__cause__, DuplicateReceipt)
    assert experiment.output() == []


# -- law 1: two attempts of one send task ----------------------------------------------------------------


class TaskContext:
    """The task context of a second attempt."""

    def attemptNumber(self):  # noqa: N802 - Spark's name
        return 1

    def partitionId(self):  # noqa: N802
        return 0


class SendTwice:
    """A send task whose first attempt dies after one of two batches; the second one sends other content."""

    def __init__(self, experiment, monkeypatch):
        self.topic_partition = TopicPartition(experiment.sink, 0)
        self.first, self.second = (self._batches(letter) for letter in "ab")
        monkeypatch.setattr("pyspark.TaskContext.get", classmethod(lambda cls: TaskContext()))
        self._config = ClientConfig.of(experiment.kafka.client_config())
        self._name = keys.transactional_id(experiment.spec)
        self._spec = experiment.spec

    def _batches(self, letter):
        values = pa.array([f"{letter}{n:03d}".encode() for n in range(100)], pa.binary())
        sealed = seal(values, np.zeros(100, np.int32), topic=self.topic_partition.topic, batch_bytes=700)
        return [(batch.records, batch.data) for batch in sealed]

    def play(self):
        """Return the second attempt's answers, after committing as if all were well."""
        with ControlPlane(self._spec) as control, BrokerConnections(self._config) as connections:
            session = control.transactions.fence(self._name)
            session.begin()
            session.add_partitions([self.topic_partition])
            send_partitions(connections, session.identity, {self.topic_partition: self.first[:1]})
            count = sum(records for records, _ in self.second)
            task = SendTask(
                self._config,
                session.identity,
                {self.topic_partition: (len(self.second), count)},
                {0: 0},
                delivery_timeout=20.0,
                timeout=60.0,
                second_attempt_wait=0.0,
            )
            try:
                answers = [text for batch in task([self._rows()]) for text in batch["answer"].to_pylist()]
            finally:
                end_txn(connections, session.identity, commit=True)
                session.close()
                wait_for_markers(self._spec.kafka, [self.topic_partition])
        return answers

    def _rows(self):
        columns = [
            (0, self.topic_partition.topic, self.topic_partition.partition, 0, 0, number, records, data)
            for number, (records, data) in enumerate(self.second)
        ]
        arrays = [pa.array(c, t) for c, t in zip(zip(*columns, strict=True), SCHEMA.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def letters(experiment):
    """First letters of the output, each once, sorted."""
    return sorted({value[0] for value in experiment.output()})


def test_a_second_attempt_of_a_send_task_writes_nothing(experiment, monkeypatch):
    """Law 1: Spark retries the task in the same epoch: it refuses; the log has only the first attempt."""
    task = SendTwice(experiment, monkeypatch)
    with pytest.raises(TaskError, match="wrote nothing"):
        task.play()
    assert len(experiment.output()) == task.first[0][0]
    assert letters(experiment) == ["a"]


def test_without_law_1_the_second_attempt_is_found_out_by_its_offsets(experiment, monkeypatch):
    """Law 1, second guard: the broker acknowledges another batch as a duplicate, at an earlier offset."""
    monkeypatch.setattr(send_task, "refuse_second_attempt", lambda *args: None)
    (text,) = SendTwice(experiment, monkeypatch).play()
    answer = json.loads(text)
    assert "error" in answer, f"the second attempt has a receipt: {answer}"
    assert answer["error"]["type"] == "DuplicateReceipt"
    assert "another attempt" in answer["error"]["message"]


def test_without_both_guards_two_attempts_are_mixed(experiment, monkeypatch):
    """Law 1, counter-test: the receipt is perfect, but readers get one half of each attempt."""
    monkeypatch.setattr(send_task, "refuse_second_attempt", lambda *args: None)
    without_law.remove("end-before", monkeypatch.setattr)
    task = SendTwice(experiment, monkeypatch)
    (answer,) = task.play()
    receipt = json.loads(answer)["receipt"]
    assert (receipt["records"], receipt["last_sequence"]) == (100, 99)
    assert len(experiment.output()) == 100
    assert letters(experiment) == ["a", "b"]


# -- law 4: what is committed is what was sealed ---------------------------------------------------------


class Lies(LocalDataPlane):
    """Writes all but the last partition's batches, and reports all of them as written."""

    def send(self, sealed, identity, timeout):
        with BrokerConnections(self._config) as connections:
            *written, left_out = sorted(sealed.batches)
            some = {tp: sealed.batches[tp] for tp in written}
            receipts = send_partitions(connections, identity, some, timeout=timeout)
        records = sum(n for n, _ in sealed.batches[left_out])
        claim = dataclasses.replace(
            receipts[0],
            topic=left_out.topic,
            partition=left_out.partition,
            records=records,
            batches=len(sealed.batches[left_out]),
            last_sequence=records - 1,
        )
        return [*receipts, claim]


def test_receipts_that_lie_are_found_out(experiment):
    """Law 4: the receipts equal the manifest; the partition's leader has never seen the records."""
    experiment.feed(20)
    with pytest.raises(RunFailed, match="its leader says -1"):
        experiment.run(data=Lies, max_send_attempts=1)
    assert experiment.output() == []
    experiment.run(try_number=2)
    experiment.assert_exact()


def test_without_law_4_a_lie_is_committed_as_a_loss(experiment, monkeypatch):
    """Law 4, counter-test: without the proof, the offsets pass over records that were never written."""
    monkeypatch.setattr(laws, "proof_holds", lambda *args: None)
    monkeypatch.setattr(laws, "begins_with_receipts", lambda *args: None)
    experiment.feed(20)
    experiment.run(data=Lies)
    lost, duplicated = judged(experiment)
    assert lost != []
    assert duplicated == []
    assert experiment.run("r2").records_read == 0


# -- law 3: when the ledger is believed ------------------------------------------------------------------


def test_a_commit_before_the_fence_is_found_behind_it(experiment):
    """Law 3: another try commits between look-up and fence: the second look-up finds its commit."""
    experiment.feed(20)
    slow = Paused(experiment, State.ASKED, "r1", ranges=given(experiment))
    experiment.run("r1", try_number=2, ranges=given(experiment))
    slow.resume()
    assert slow.error is None
    assert slow.record.found
    assert experiment.verdict().exact


def test_the_clear_of_an_old_run_leaves_the_live_one_alone(experiment):
    """Law 3: a record found before the fence answers the cleared run, and the live run is not fenced."""
    experiment.feed(10)
    experiment.run("r1")
    experiment.feed(10)
    live = Paused(experiment, State.PROVEN, "r2")
    assert experiment.run("r1", clear_number=1).found
    live.resume()
    assert live.error is None
    assert not live.record.found
    experiment.assert_exact()


# -- laws 5 and 6: ranges and the cursor -----------------------------------------------------------------


def test_a_range_ends_below_an_open_transaction(experiment):
    """Law 5: records of an open transaction, and those after them, are left to the next run."""
    experiment.publish(["0:000000", "0:000001"])
    upstream = Producer({**experiment.kafka.client_config(), "transactional.id": f"up-{experiment.sink}"})
    upstream.init_transactions(30)
    upstream.begin_transaction()
    upstream.produce(experiment.source, value="0:000002", key="0:000002", partition=0)
    assert upstream.flush(30) == 0
    experiment.publish(["0:000003"])
    experiment.sent += [f"0:{n:06d}" for n in range(4)]

    def end_upstream(state):
        if state is State.PLANNED:
            upstream.commit_transaction(30)
            wait_for_markers(experiment.kafka.client_config(), [TopicPartition(experiment.source, 0)])

    record = experiment.run(on_state=end_upstream)
    assert [(r.partition, r.end) for r in record.ranges if r.span] == [(0, 2)]
    experiment.run("r2")
    experiment.assert_exact()


def test_offsets_moved_during_a_run_stop_its_commit(experiment):
    """Law 6: another client commits to the group between plan and proof: the run commits nothing over it."""
    experiment.feed(20)

    def move(state):
        if state is State.WRITTEN:
            commit_offset(experiment.spec.kafka, experiment.spec.group_id, experiment.source, 3)

    with pytest.raises(CursorMoved, match="somebody else commits"):
        experiment.run(on_state=move)
    assert experiment.output() == []
    assert experiment.committed() == [3, -1]


# -- laws 9 and 10: brokers and time-outs ----------------------------------------------------------------


def test_time_outs_that_do_not_fit_are_refused(experiment):
    """Law 10: a delivery time-out above the transaction time-out is refused before the run starts."""
    experiment.feed(10)
    with pytest.raises(TimeoutsInconsistent, match="must be below"):
        experiment.run(
            transaction_timeout=dt.timedelta(seconds=60), delivery_timeout=dt.timedelta(seconds=60)
        )
    assert experiment.output("read_uncommitted") == []


def test_a_send_has_what_is_left_of_its_transaction_less_a_margin(experiment):
    """Law 10: writers give up half a minute before the coordinator would."""
    experiment.feed(10)
    given_times = []

    class Watches(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            given_times.append(timeout)
            return super().send(sealed, identity, timeout)

    experiment.run(data=Watches)
    limit = experiment.spec.transaction_timeout.total_seconds()
    assert limit - 60 < given_times[0] <= limit - laws.MARGIN_SECONDS
