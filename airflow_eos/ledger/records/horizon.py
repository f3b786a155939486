"""The record of the reads of a pipeline's pruned runs: its *horizon*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_eos.model.names import checked_name
from airflow_eos.model.versioned import VersionedOfTransaction, integer, json_object, text


@dataclass(frozen=True, slots=True)
class Horizon(VersionedOfTransaction):
    """The offsets and intervals that the pruned runs of a pipeline covered.

    :param before: the latest moment before which records were pruned, UTC.
    :param read: the offsets that they read, in the form of
        :meth:`airflow_eos.coverage.folded.Earlier.to_dict`.
    :param intervals: their intervals, adjacent ones joined: ``[topics, partition, start, end]``.
    """

    KIND = "horizon"
    VERSIONS = (1,)

    pipeline: str
    before: str = ""
    runs: int = 0
    read: Mapping[str, Any] = field(default_factory=dict)
    intervals: tuple[tuple[tuple[str, ...], int | None, str, str], ...] = ()

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Horizon:
        intervals = tuple(
            (
                tuple(text(topic) for topic in topics),
                None if partition is None else integer(partition, 0),
                text(start),
                text(end),
            )
            for topics, partition, start, end in data["intervals"]
        )
        return cls(
            checked_name("pipeline", data["pipeline"]),
            text(data["before"]),
            integer(data["runs"], 0),
            json_object(data["read"]),
            intervals,
        )
