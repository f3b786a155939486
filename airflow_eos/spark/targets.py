"""The leaders of a target topic, and the settings by which it refuses records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.exceptions import RecordRefused
from airflow_eos.recordbatch.sealer import MAX_MESSAGE_BYTES
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.describe_configs import topic_settings

_MAX_BYTES, _SEGMENT = "max.message.bytes", "segment.bytes"  # below Kafka 4.0 the latter may be less
_CLEANUP = "cleanup.policy"
_COMPRESSION = "compression.type"
_TIMESTAMPS = "message.timestamp.type"
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_DIFFERENCE = "message.timestamp.difference.max.ms"  # of brokers below 4.0, where it is not the default
_SETTINGS = [_MAX_BYTES, _SEGMENT, _CLEANUP, _COMPRESSION, _TIMESTAMPS, _BEFORE, _AFTER, _DIFFERENCE]
_NO_LIMIT = (1 << 63) - 1
_NO_TIMESTAMP = -1  # brokers accept it, whatever the limits

CLOCKS_DIFFER_MS = 12 * 3_600_000
"""A timestamp is refused here only this far beyond the topic's limits: the broker's clock decides."""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A target topic; settings that this principal may not read have Kafka's defaults.

    :param leaders: leader's node id per partition when the topic was described.
    :param max_message_bytes: the topic's ``max.message.bytes``, or ``segment.bytes`` where that is less.
    :param needs_keys: whether it is compacted: its brokers refuse records without a key.
    :param before_ms: milliseconds that a timestamp may be before the broker's time.
    :param after_ms: milliseconds that a timestamp may be after the broker's time.
    :param codec: ``none`` if brokers decompress batches and compare that size with the limit; None: any.
    """

    topic: str
    leaders: Mapping[int, int]
    max_message_bytes: int = MAX_MESSAGE_BYTES
    needs_keys: bool = False
    before_ms: int = _NO_LIMIT
    after_ms: int = _NO_LIMIT
    codec: str | None = None

    @classmethod
    def of(cls, topic: str, leaders: Mapping[int, int], settings: Mapping[str, str]) -> TargetTopic:
        """Return a topic with the effective limits of its settings, as brokers return them."""
        limits = {name: int(settings.get(name, _NO_LIMIT)) for name in (_BEFORE, _AFTER, _DIFFERENCE)}
        checked = settings.get(_TIMESTAMPS) == "CreateTime"
        if limits[_DIFFERENCE] != _NO_LIMIT:  # brokers use it where the newer settings have their default
            limits = {name: min(value, limits[_DIFFERENCE]) for name, value in limits.items()}
        return cls(
            topic,
            dict(leaders),
            min(int(settings.get(_MAX_BYTES, MAX_MESSAGE_BYTES)), int(settings.get(_SEGMENT, _NO_LIMIT))),
            needs_keys="compact" in settings.get(_CLEANUP, "").split(","),
            before_ms=limits[_BEFORE] if checked else _NO_LIMIT,
            after_ms=limits[_AFTER] if checked else _NO_LIMIT,
            codec="none" if settings.get(_COMPRESSION) == "uncompressed" else None,
        )

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.leaders)

    def check(self, rows: int, key: pa.ChunkedArray | None, timestamp: pa.ChunkedArray | None) -> None:
        """Refuse records that the brokers would refuse.

        :param timestamp: milliseconds; None, and null: the time of sealing.
        :raises RecordRefused: names the setting, and the key of the record if it has one.
        """
        without_key = rows if key is None else key.null_count
        if self.needs_keys and without_key:
            raise RecordRefused(
                f"{without_key} of {rows} records for topic {self.topic} have no key, and its {_CLEANUP} is "
                "compact: Kafka refuses them (INVALID_RECORD). Give them keys, leave them out, or write to a "
                "topic that is not compacted"
            )
        if timestamp is None:
            return
        outside = _first_outside(timestamp, *self._limits(CLOCKS_DIFFER_MS))
        if outside is not None:
            row, value = outside
            named = "" if key is None else f" (key {str(key[row].as_py())[:100]})"
            why = "before 1970: brokers can neither compact nor recompress it. Return another one or none"
            if value >= 0:
                why = (
                    f"beyond the topic's {_BEFORE} of {self.before_ms} or {_AFTER} of {self.after_ms}: Kafka "
                    "refuses it (INVALID_TIMESTAMP). Return another timestamp or none, or raise the setting"
                )
            raise RecordRefused(f"a record for topic {self.topic}{named} has timestamp {value} ms, {why}")

    def takes_timestamp(self, milliseconds: int) -> bool:
        """Return whether a timestamp is within the topic's limits, by this host's clock."""
        earliest, latest = self._limits(0)
        return earliest <= milliseconds <= latest or milliseconds == _NO_TIMESTAMP

    def _limits(self, tolerance: int) -> tuple[int, int]:
        now = time.time_ns() // 1_000_000
        # The log cleaner gives up on a partition with a timestamp before 1970.
        return max(0, now - self.before_ms - tolerance), min(_NO_LIMIT, now + self.after_ms + tolerance)


def _first_outside(column: pa.ChunkedArray, earliest: int, latest: int) -> tuple[int, int] | None:
    bounds = pc.min_max(column)
    if bounds["min"].as_py() is None:
        return None
    if bounds["min"].as_py() >= earliest and bounds["max"].as_py() <= latest:
        return None
    outside = pc.and_(
        pc.or_(pc.less(column, earliest), pc.greater(column, latest)), pc.not_equal(column, _NO_TIMESTAMP)
    )
    row = pc.index(outside, True).as_py()
    return None if row < 0 else (row, column[row].as_py())


def describe_targets(connections: BrokerConnections, topics: Iterable[str]) -> dict[str, TargetTopic]:
    """Describe target topics.

    :raises UnknownTopic: names the topic.
    :raises AuthorizationFailed: Describe is missing.
    :raises BrokersUnavailable: no broker answers.
    """
    metadata = connections.topics(topics)
    settings = topic_settings(connections, list(metadata), _SETTINGS)
    return {
        name: TargetTopic.of(name, topic.leaders, settings.get(name, {})) for name, topic in metadata.items()
    }
