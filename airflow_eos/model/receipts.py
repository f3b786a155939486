"""PartitionReceipt: what the broker acknowledged for one target partition."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_OFFSET = -1
"""Offsets and sequence of a receipt for a partition that got no record."""


@dataclass(frozen=True, slots=True)
class PartitionReceipt:
    """Everything one owner task wrote to one partition, as acknowledged by its leader.

    :param first_offset: base offset of the first batch; -1 when no record was written.
    :param last_offset: offset of the last record; other producers' records may lie in between.
    :param records: records acknowledged.
    :param size: bytes of the record batches, compressed, with headers.
    :param batches: record batches acknowledged.
    :param last_sequence: sequence of the last record, what DescribeProducers must show; -1 without records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    size: int
    batches: int
    last_sequence: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PartitionReceipt:
        """Read the JSON form; keys of a newer version are ignored."""
        return cls(
            topic=str(data["topic"]),
            partition=int(data["partition"]),
            first_offset=int(data["first_offset"]),
            last_offset=int(data["last_offset"]),
            records=int(data["records"]),
            size=int(data["size"]),
            batches=int(data["batches"]),
            last_sequence=int(data["last_sequence"]),
        )
