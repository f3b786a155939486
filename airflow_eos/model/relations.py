"""Checks that the parameters of a run are consistent: topics, partitions and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.dead_letter import MOST_BESIDE_TABLE
from airflow_eos.model.kafka import INTERNAL_TOPICS
from airflow_eos.model.kinds import did_you_mean
from airflow_eos.model.ranges import Explicit, OffsetRange
from airflow_eos.model.sink_table import SinkTable

TABLE_REFUSES: Mapping[str, tuple[object, str]] = {
    "sink_topic": (None, "a run has one sink: leave one of them out"),
    "mark_output": ("never", "rows have no headers; the snapshot's summary names the run"),
    "compression": (
        "zstd",
        "it is of Kafka's batches; a table has its own settings (Iceberg: write.parquet.compression-codec)",
    ),
    "allow_loop": (False, "a table is not read by the run"),
}
"""Parameters that do not apply to a table: the only value allowed with a table, and the advice."""


def check_sink(sink: str | None, sources: Sequence[str], ledger: str, *, allow_loop: bool) -> None:
    """Check the topic that a run writes to.

    :raises ConfigurationError: it is the ledger or an internal topic, or the run reads it and
        ``allow_loop`` is False.
    """
    refuse_internal("sink_topic", sink)
    if sink is not None and sink == ledger:
        raise ConfigurationError(
            f"sink_topic {sink!r} is the ledger's topic, which holds run records only; choose another one"
        )
    if sink in sources and not allow_loop:
        raise ConfigurationError(
            f"sink_topic {sink!r} is also a source topic: the next run would read the output of this run. "
            "Choose another topic, or set allow_loop=True where the loop is wanted"
        )


def check_table(sink: object, others: Mapping[str, object]) -> None:
    """Check a table as the sink, and the parameters beside it.

    :param others: the parameters of :data:`TABLE_REFUSES`; those that are not known yet are left out.
    :raises ConfigurationError: it is not a table, or a parameter beside it would be ignored.
    """
    if sink is None:
        return
    if not isinstance(sink, SinkTable):
        raise ConfigurationError(
            f"sink must be a table, as IcebergTable(name, catalog=...), got {sink!r}; a topic is given as "
            "sink_topic"
        )
    for name, (must_be, way_on) in TABLE_REFUSES.items():
        if name in others and others[name] != must_be:
            raise ConfigurationError(
                f"{name}={others[name]!r} does not go with a table as the sink: {way_on}"
            )


def check_letters_beside_table(sink: object, topic: str | None, most: int | None) -> None:
    """Raise ConfigurationError for more dead letters than the INTENT of a run with a table can name."""
    if sink is not None and topic is not None and most is not None and most > MOST_BESIDE_TABLE:
        raise ConfigurationError(
            f"max_dead_letters={most} is more than the {MOST_BESIDE_TABLE} that a run with a table may have: "
            "its INTENT names each of them, in one record of the ledger; read fewer records in a run, or "
            "correct the records on which the process raises"
        )


def check_dead_letter_topic(topic: str | None, sources: Sequence[str], ledger: str) -> None:
    """Raise ConfigurationError for dead letters to the ledger, an internal topic, or a source topic."""
    refuse_internal("dead_letter_topic", topic)
    if topic is not None and topic in (*sources, ledger):
        raise ConfigurationError(
            f"dead_letter_topic {topic!r} is read by the run, or is the ledger; choose another one"
        )


def check_source_partition(partition: int | None, sources: Sequence[str]) -> None:
    """Raise ConfigurationError for ``source_partition`` of a run that reads several topics."""
    if partition is not None and len(sources) != 1:
        raise ConfigurationError(
            f"source_partition={partition} needs exactly one source topic, got {list(sources)!r}"
        )


def check_topics_of(field: str, ranges: Sequence[OffsetRange], sources: Sequence[str]) -> None:
    """Raise ConfigurationError for ranges of a parameter that are of topics which the run does not read."""
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


def refuse_internal(field: str, topic: str | None) -> None:
    """Refuse a topic that only brokers write."""
    if topic in INTERNAL_TOPICS:
        raise ConfigurationError(f"{field} {topic!r} is written by brokers only; choose another topic")
