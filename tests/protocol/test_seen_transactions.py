"""What shows how a transaction was decided, where neither the ledger nor its coordinator tells."""

from __future__ import annotations

from typing import Any

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.run.unfinished import seen_of
from tests.protocol.model.broker import ModelBroker
from tests.protocol.model.ports import ModelCluster
from tests.protocol.model.scenes import Inline, Scene, before, spec

OUT = TopicPartition("out", 0)


def test_a_strangers_record_shows_no_commit() -> None:
    """The topic was made again, and somebody wrote there: that says nothing of what a run wrote before."""
    scene = Scene(ModelBroker({"src": 1, "out": 1}))
    scene.broker.write_input("src", 0, "a")
    record = before(scene, spec())
    scene.broker.groups.clear()
    inline: Any = Inline(scene.broker)
    cluster: Any = ModelCluster(inline, scene.broker)
    assert seen_of(cluster, record) is True
    scene.broker.logs[OUT].clear()
    scene.broker.write_input("out", 0, "a stranger's")
    assert seen_of(cluster, record) is None
