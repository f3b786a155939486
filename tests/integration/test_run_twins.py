"""Attempts that overlap: zombies, twins, kills, on a real broker."""

from __future__ import annotations

import threading

import pytest

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ProducerFenced, RunFailed, RunFenced, SendError
from airflow_eos.ledger.keys import cursor_transactional_id
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.protocol import RunProtocol
from airflow_eos.run.states import State
from tests.support.local_runs import LocalDataPlane, Paused, Pipeline


@pytest.fixture
def pipeline(embedded_kafka):
    filled = Pipeline(embedded_kafka)
    filled.publish([f"v{i}" for i in range(20)])
    return filled


PATIENT = 60.0
"""Seconds for a kill on a slow machine: otherwise it leaves the rest to the transaction time-out."""


@pytest.mark.parametrize(
    "state",
    [State.FENCED, State.PLANNED, State.SEALED, State.OPEN, State.WRITTEN, State.STAGED, State.PROVEN],
)
def test_a_zombie_that_wakes_after_its_successor_changes_nothing(pipeline, state):
    """Paused at any state while the next try commits: it finds the commit, and the output does not change."""
    zombie = Paused(pipeline, state)
    record = pipeline.run(try_number=2)
    assert not record.found
    zombie.resume()
    assert zombie.error is None
    assert zombie.record is not None
    assert zombie.record.found
    assert zombie.record.try_number == 2
    assert pipeline.output() == sorted(f"v{i}" for i in range(20))
    assert pipeline.run("next").records_read == 0


def test_a_zombie_of_an_uncommitted_run_is_fenced_for_good(pipeline):
    """Overtaken by the next run of its cursor: the older one fails, so that it is retried."""
    zombie = Paused(pipeline, State.WRITTEN, "r1")
    pipeline.run("r2")
    zombie.resume()
    assert isinstance(zombie.error, RunFenced)
    assert "retry" in str(zombie.error)
    assert pipeline.run("r1", try_number=2).records_read == 0
    assert len(pipeline.output()) == 20


def test_open_output_is_seen_by_read_uncommitted_readers_only(pipeline):
    """Between WRITTEN and the commit readers of committed data see nothing; after an abort, they never do."""
    attempt = Paused(pipeline, State.WRITTEN)
    assert len(pipeline.output("read_uncommitted")) == 20
    assert pipeline.output() == []
    attempt.resume()
    assert len(pipeline.output()) == 20


def test_a_failed_send_is_repeated_under_a_new_epoch(pipeline):
    """An error after the writes: the run aborts its own transaction, and sends the sealed batches again."""
    sent = []

    class FailsOnce(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            receipts = super().send(sealed, identity, timeout)
            sent.append(identity.producer_epoch)
            if len(sent) == 1:
                raise SendError("an executor was lost")
            return receipts

    record = pipeline.run(data=FailsOnce)
    assert len(set(sent)) == 2
    assert record.producer.producer_epoch == sent[1]
    assert "ABORTED" in [state for state, _ in record.trace]
    assert len(pipeline.output()) == 20


def test_a_send_that_always_fails_ends_the_run_and_shows_nothing(pipeline):
    """After max_send_attempts the run fails; a later try starts at the same offsets."""

    class Fails(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            super().send(sealed, identity, timeout)
            raise SendError("no luck")

    with pytest.raises(RunFailed, match="2 attempt"):
        pipeline.run(data=Fails, max_send_attempts=2)
    assert pipeline.output() == []
    assert pipeline.run(try_number=2).records_written == 20


def test_lost_batches_never_commit(pipeline):
    """Receipts that do not equal the manifest abort the run."""

    class Forgets(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            return super().send(sealed, identity, timeout)[:-1]

    with pytest.raises(RunFailed, match="receipts do not equal the manifest"):
        pipeline.run(data=Forgets, max_send_attempts=1)
    assert pipeline.output() == []


def test_a_killed_run_aborts_its_transaction_and_takes_no_other_epoch(pipeline):
    """As on_kill does: EndTxn(abort) with its own identity; the attempt fails, the next one commits."""
    spec = pipeline.spec
    opened, go = threading.Event(), threading.Event()
    epochs = []

    def hold(state):
        if state is State.WRITTEN:
            opened.set()
            assert go.wait(60)

    class Counting(LocalDataPlane):
        def send(self, sealed, identity, timeout):
            epochs.append(identity.producer_epoch)
            return super().send(sealed, identity, timeout)

    errors = []
    with ControlPlane(spec) as control:
        protocol = RunProtocol(spec, control.collaborators(Counting(spec)), hold)

        def body():
            try:
                protocol.execute()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        assert opened.wait(60)
        protocol.kill(PATIENT)
        assert pipeline.output("read_uncommitted") != []
        go.set()
        thread.join(60)
    assert isinstance(errors[0], RunFailed)
    assert len(epochs) == 1
    assert pipeline.output() == []
    assert pipeline.run(try_number=2).records_written == 20


def test_a_late_kill_of_a_replaced_attempt_leaves_the_live_one_alone(pipeline):
    """SIGTERM reaches the zombie while its successor's transaction is open: the successor commits."""
    spec = pipeline.spec
    with ControlPlane(spec) as control:
        replaced = RunProtocol(spec, control.collaborators(LocalDataPlane(spec)))
        # It took its epoch, and does nothing else.
        session = control.transactions.fence(cursor_transactional_id("test", spec.group_id))
        replaced.producer = session.identity
        live = Paused(pipeline, State.STAGED, try_number=2)
        replaced.kill(PATIENT)
        session.close()
        live.resume()
    assert live.error is None
    assert len(pipeline.output()) == 20


def test_executors_of_a_fenced_attempt_cannot_write_any_more(pipeline):
    """The old identity is refused on every partition, so a late send task does no harm."""
    from airflow_eos.wire.connection import BrokerConnections
    from airflow_eos.wire.produce import send_partitions

    zombie = Paused(pipeline, State.SEALED)
    record = pipeline.run(try_number=2)
    old = record.producer.__class__(
        record.producer.transactional_id, record.producer.producer_id, record.producer.producer_epoch - 1
    )
    sealed = LocalDataPlane(pipeline.spec).seal(type("Plan", (), {"ranges": record.ranges}))
    assert sealed.batches.keys() == {TopicPartition(pipeline.sink, p) for p in (0, 1)}
    with BrokerConnections(pipeline.spec.kafka) as connections:
        for tp, batches in sealed.batches.items():
            with pytest.raises(ProducerFenced):
                send_partitions(connections, old, {tp: batches}, timeout=30)
    zombie.resume()
    assert len(pipeline.output()) == 20
