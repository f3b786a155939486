"""Checks that the parameters of a run are consistent: topics, partitions and ranges."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.model.ranges import Explicit, OffsetRange


def check_sink(sink: str | None, sources: Sequence[str], ledger: str, *, allow_loop: bool) -> None:
    """Check the topic that a run writes to.

    :raises ConfigurationError: it is the ledger, or the run reads it and ``allow_loop`` is False.
    """
    if sink is not None and sink == ledger:
        raise ConfigurationError(
            f"sink_topic {sink!r} is the ledger's topic, which holds run records only; choose another one"
        )
    if sink in sources and not allow_loop:
        raise ConfigurationError(
            f"sink_topic {sink!r} is also a source topic: the next run would read what this run writes. "
            "Choose another topic, or set allow_loop=True where the loop is wanted"
        )


def check_dead_letter_topic(topic: str | None, sources: Sequence[str], ledger: str) -> None:
    """Check the topic of dead letters.

    :raises ConfigurationError: it is the ledger, or the run reads it.
    """
    if topic is not None and topic in (*sources, ledger):
        raise ConfigurationError(
            f"dead_letter_topic {topic!r} is read by the run, or is the ledger; choose another one"
        )


def check_source_partition(partition: int | None, sources: Sequence[str]) -> None:
    """Check the only partition that a run reads.

    :raises ConfigurationError: the run reads several topics.
    """
    if partition is not None and len(sources) != 1:
        raise ConfigurationError(
            f"source_partition={partition} needs exactly one source topic, got {list(sources)!r}"
        )


def check_topics_of(field: str, ranges: Sequence[OffsetRange], sources: Sequence[str]) -> None:
    """Check that ranges are of topics that the run reads.

    :param field: name of the parameter, for errors.
    :raises ConfigurationError: a range is of another topic.
    """
    others = sorted({offsets.topic for offsets in ranges} - set(sources))
    if others:
        raise ConfigurationError(
            f"{field} names {', '.join(others)}, which is not a source topic; topics are "
            f"{', '.join(sources)}{did_you_mean(others[0], sources)}"
        )


def check_explicit(ranges: object, sources: Sequence[str], partition: int | None = None) -> None:
    """Check that explicit ranges are of topics and partitions that the run reads.

    :param ranges: the run's ranges; other modes than :class:`Explicit` are not checked.
    :raises ConfigurationError: a range is of another topic, or of another partition than the run's only one.
    """
    if not isinstance(ranges, Explicit):
        return
    check_topics_of("ranges=Explicit(...)", ranges.ranges, sources)
    others = sorted({offsets.partition for offsets in ranges.ranges} - {partition})
    if partition is not None and others:
        raise ConfigurationError(
            f"ranges=Explicit(...) names partition {others[0]}, and source_partition={partition} reads that "
            "partition alone"
        )
