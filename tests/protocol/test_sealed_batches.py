"""Sealed batches: each is released exactly once, and none is written to the ledger."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError, ProcessFailed, RunFailed, SealedBlockLost
from airflow_eos.model.ranges import TopicPartition
from tests.protocol.model.broker import LEDGER, ModelBroker
from tests.protocol.model.ports import ModelData
from tests.protocol.model.scenes import Scene, before, spec


class WatchedData(ModelData):
    """Records what was sealed and released; loses its blocks ``losses`` times before it can send."""

    def __init__(self, *arguments: Any, losses: int = 0) -> None:
        super().__init__(*arguments)
        self.losses = losses
        self.sealed: list[Any] = []
        self.released: list[Any] = []

    def seal(self, plan: Any) -> Any:
        self.sealed.append(super().seal(plan))
        return self.sealed[-1]

    def send(self, *arguments: Any) -> Any:
        if self.losses:
            self.losses -= 1
            raise SealedBlockLost("an executor took them with it")
        return super().send(*arguments)

    def release(self, sealed: Any) -> None:
        self.released.append(sealed)


@pytest.mark.parametrize(("losses", "seals"), [(0, 1), (1, 2), (2, 2)])
def test_sealed_batches_are_released_once_whatever_became_of_them(losses: int, seals: int) -> None:
    """Sent, lost and sealed again, or given up: no block stays on the live executors."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    scene.broker.write_input("src", 0, "r0")
    planes: list[WatchedData] = []

    def data(*arguments: Any) -> WatchedData:
        planes.append(WatchedData(*arguments, losses=losses))
        return planes[-1]

    with pytest.raises(RunFailed) if losses == 2 else nullcontext():
        before(scene, spec(max_send_attempts=2), data)
    (plane,) = planes
    assert len(plane.sealed) == seals
    assert [id(sealed) for sealed in plane.released] == [id(sealed) for sealed in plane.sealed]


def into(manifest: Any, topic: str) -> Any:
    """Return the manifest of the same rows for another topic."""
    (target,) = manifest.targets
    return replace(manifest, targets=(replace(target, topic=topic),))


def test_rows_for_the_ledger_are_refused_before_anything_is_sent() -> None:
    """Executors and driver would write one partition under one identity, each from sequence 0."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    scene.broker.write_input("src", 0, "r0")
    records = list(scene.broker.ledger_records())

    class IntoTheLedger(WatchedData):
        def seal(self, plan: Any) -> Any:
            sealed = super().seal(plan)
            manifest = into(sealed.manifest, LEDGER)
            sealed.manifest, sealed.batches = manifest, {TopicPartition(LEDGER, 0): ["r0"]}
            return sealed

        def send(self, *arguments: Any) -> Any:
            raise AssertionError("rows for the ledger were sent")

    with pytest.raises(ProcessFailed, match="'ledger'"):
        before(scene, spec(), IntoTheLedger)
    assert scene.broker.ledger_records() == records


def test_the_ledger_is_no_sink_topic() -> None:
    """The specification itself refuses the ledger as a sink topic."""
    with pytest.raises(ConfigurationError, match="sink_topic 'ledger' is the ledger's topic"):
        spec(sink_topic=LEDGER)


@pytest.mark.parametrize("allow_loop", [False, True])
def test_rows_for_a_source_topic_are_refused_unless_the_run_may_loop(allow_loop: bool) -> None:
    """The next run would read what this run writes; nothing is sent."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    scene.broker.write_input("src", 0, "r0")
    sent: list[Any] = []

    class IntoTheSource(WatchedData):
        def seal(self, plan: Any) -> Any:
            sealed = super().seal(plan)
            sealed.manifest = into(sealed.manifest, "src")
            return sealed

        def send(self, *arguments: Any) -> Any:
            sent.append(arguments)
            raise SealedBlockLost("the test ends here")

    error, says = (RunFailed, "ends here") if allow_loop else (ProcessFailed, "source topic: src")
    with pytest.raises(error, match=says):
        before(scene, spec(allow_loop=allow_loop, max_send_attempts=1), IntoTheSource)
    assert bool(sent) == allow_loop


def test_rows_for_a_topic_of_the_brokers_are_refused() -> None:
    """Only brokers write to such a topic: no permission helps."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    scene.broker.write_input("src", 0, "r0")

    class IntoTheOffsets(WatchedData):
        def seal(self, plan: Any) -> Any:
            sealed = super().seal(plan)
            sealed.manifest = into(sealed.manifest, "__consumer_offsets")
            return sealed

    with pytest.raises(ProcessFailed, match="'topic' is written by brokers only: __consumer_offsets"):
        before(scene, spec(), IntoTheOffsets)
