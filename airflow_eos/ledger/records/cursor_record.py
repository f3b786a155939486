"""The record of a group's cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from airflow_eos.model.names import checked_name
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.model.versioned import Versioned, integer, text, topic_name

Layout = Literal["whole", "mapped"]


@dataclass(frozen=True, slots=True)
class CursorRecord(Versioned):
    """The next offsets to read of a group.

    :param layout: ``whole`` if one task moves all partitions, ``mapped`` if one task moves each partition.
    :param ends: next offset per partition; empty in the layout record of a mapped cursor.
    :param topic_ids: ids of the topics when the cursor was last moved.
    :param partition_counts: partitions per topic when the cursor first named the topic. A partition at or
        above the count was added since, and is read from offset 0 unless ``ends`` has it.
    :param ledger_topic_id: topic id of the ledger it was written to.
    :param epochs: epochs of the leaders when ``ends`` were read; omits those that are unknown.
    :param origin: the environment that owns the cursor; empty if unknown.
    """

    KIND = "cursor"
    VERSIONS = (1,)

    group: str
    pipeline: str
    prefix: str
    layout: Layout
    ends: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    partition_counts: Mapping[str, int]
    run_key: str
    ledger_topic_id: str
    ledger_partitions: int
    origin: str = ""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def is_added(self, tp: TopicPartition) -> bool:
        """Return whether a partition was added to its topic since the cursor first named the topic."""
        return 0 < self.partition_counts.get(tp.topic, 0) <= tp.partition

    def _content(self) -> Mapping[str, Any]:
        return {
            "group": self.group,
            "pipeline": self.pipeline,
            "prefix": self.prefix,
            "layout": self.layout,
            "ends": [[tp.topic, tp.partition, end] for tp, end in sorted(self.ends.items())],
            "topic_ids": dict(self.topic_ids),
            "partition_counts": dict(self.partition_counts),
            "run_key": self.run_key,
            "ledger_topic_id": self.ledger_topic_id,
            "ledger_partitions": self.ledger_partitions,
            **({"origin": self.origin} if self.origin else {}),
            **({"epochs": [self.epochs.get(tp, -1) for tp in sorted(self.ends)]} if self.epochs else {}),
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> CursorRecord:
        ends = {TopicPartition(topic_name(t), integer(p, 0)): integer(end, 0) for t, p, end in data["ends"]}
        epochs = zip(ends, data["epochs"], strict=True) if "epochs" in data else ()
        if data["layout"] not in get_args(Layout):
            raise ValueError(f"{data['layout']!r} is not one of {', '.join(get_args(Layout))}")
        return cls(
            group=checked_name("group", data["group"]),
            pipeline=checked_name("pipeline", data["pipeline"]),
            prefix=text(data["prefix"]),
            layout=data["layout"],
            ends=ends,
            topic_ids={topic_name(name): text(topic_id) for name, topic_id in data["topic_ids"].items()},
            partition_counts={
                topic_name(name): integer(n, 1) for name, n in data["partition_counts"].items()
            },
            run_key=text(data["run_key"]),
            ledger_topic_id=text(data["ledger_topic_id"]),
            ledger_partitions=integer(data["ledger_partitions"], 1),
            origin=text(data.get("origin", "")),
            epochs={tp: epoch for tp, epoch in epochs if integer(epoch, -1) >= 0},
        )
