"""What a failed attempt leaves to the next one: its sealed batches while they are valid, nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from airflow_eos.broker import producer as producer_module
from airflow_eos.broker.producer import TransactionalProducer
from airflow_eos.exceptions import SealedBlockLost
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.client_config import ClientConfig
from tests.protocol.model import ports
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.ports import ModelData, ModelSession, ModelTransactions
from tests.protocol.model.scenes import Inline, Scene, spec

NOWHERE = ClientConfig.of({"bootstrap.servers": "127.0.0.1:1"})


class Instance(confluent_kafka.Producer):
    """A producer that supports weak references."""


def run_alone(data: Callable[..., ModelData] = ModelData) -> Any:
    """Make one run on a model cluster with input."""
    broker = ModelBroker({"src": 2, "out": 2})
    broker.write_input("src", 0, "a")
    return ports.attempt(Inline(broker), Scene(broker), "only", spec(), data)()  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", ["stage", "commit"])
def test_the_producer_of_a_failed_attempt_is_freed_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The failure is kept for the run's last error; a producer kept alive by it would fill the memory."""
    instances: list[weakref.ref[Instance]] = []
    alive: list[list[bool]] = []

    class Session(ModelSession):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            name = self.identity.transactional_id
            self._producer = TransactionalProducer(
                NOWHERE, name, transaction_timeout=60.0, delivery_timeout=30.0
            )
            instances.append(weakref.ref(self._producer.instance))

        def stage(self, *arguments: Any) -> None:
            if fails == "stage" and len(instances) == 1:
                # Refused: its transaction was never begun.
                self._producer.publish("ledger", [(0, "key", "value")], 5.0)
            super().stage(*arguments)

        def commit(self) -> None:
            if fails == "commit" and len(instances) == 1:
                # Refused, for the same reason.
                self._producer.commit("commit", 5.0)
            super().commit()

        def close(self) -> None:
            self._producer.close()

    class Transactions(ModelTransactions):
        def fence(self, transactional_id: str) -> ModelSession:
            session = super().fence(transactional_id)
            if transactional_id != keys.cursor_transactional_id("eos", "group"):
                return session
            alive.append([instance() is not None for instance in instances])
            return Session(self._run, self._broker, session.identity)

    monkeypatch.setattr(producer_module, "Producer", Instance)
    monkeypatch.setattr(ports, "ModelTransactions", Transactions)
    assert run_alone().producer.producer_epoch == 1
    assert alive == [[], [False]]


def test_batches_that_cannot_be_sent_are_freed_before_the_new_seal() -> None:
    """If Spark has another copy of a block, the rest of the seal is still on the executors."""
    done: list[str] = []

    class Data(ModelData):
        def seal(self, plan: Any) -> Any:
            done.append("seal")
            return super().seal(plan)

        def send(self, sealed: Any, identity: Any, timeout: float) -> Any:
            done.append("send")
            if done.count("send") == 1:
                raise SealedBlockLost("another copy")
            return super().send(sealed, identity, timeout)

        def release(self, sealed: Any) -> None:
            done.append("release")

    run_alone(Data)
    assert done == ["seal", "send", "release", "seal", "send", "release"]


def test_records_that_a_leader_has_beside_those_that_were_sealed_are_not_committed() -> None:
    """In a partition that the run writes nothing to, and of which the coordinator knows nothing."""
    broker = ModelBroker({"src": 2, "out": 2}, verifies=False)
    broker.reported_verification = True
    broker.write_input("src", 0, "a")
    beside, strays = TopicPartition("out", 1), ["of an attempt that was lost"]

    class Data(ModelData):
        def send(self, sealed: Any, identity: Any, timeout: float) -> Any:
            while strays:
                broker.produce(identity, beside, 0, strays.pop())
            return super().send(sealed, identity, timeout)

    record = ports.attempt(Inline(broker), Scene(broker), "only", spec(), Data)()  # type: ignore[arg-type]
    assert record.producer.producer_epoch > 0, "that of the stray record is not committed"
    assert [entry.value for _, entry in broker.committed_entries(TopicPartition("out", 0))] == ["a"]
    assert broker.committed_entries(beside) == []
