"""Which batches of a Fetch answer a reader may see (KIP-98), as Java's ``CompletedFetch`` decides it.

Under read_committed a broker sends the log as it is up to the last stable offset, and with it the aborted
transactions that overlap the answer: (producer id, first offset). From that offset to the producer's abort
marker its transactional batches are not data. Control batches never are, at any isolation level.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

from airflow_eos.exceptions import CorruptBatch
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import NO_PRODUCER_ID, RawBatch

AbortedTransaction = tuple[int, int]
"""Producer id and first offset of an aborted transaction."""


_CONTROL_KEY = struct.Struct(">hh")


class ControlType(IntEnum):
    """Type of a control record; UNKNOWN: it belongs to KRaft's own log."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1

    @classmethod
    def parse(cls, key: bytes) -> ControlType:
        """Type in a control record's key: version int16, type int16. Later versions may add fields.

        :raises ValueError: the key is too short or its version negative
        """
        if len(key) < _CONTROL_KEY.size:
            raise ValueError(f"control record key of {len(key)} bytes")
        version, kind = _CONTROL_KEY.unpack_from(key)
        if version < 0:
            raise ValueError(f"control record key of version {version}")
        try:
            return cls(kind)
        except ValueError:
            return cls.UNKNOWN


def control_type(batch: RawBatch, *, check_crc: bool = True) -> ControlType | None:
    """Type of a control batch; ``None`` for data, and for a control batch that compaction has emptied.

    :raises CorruptBatch: the batch or its key cannot be read
    """
    if not batch.header.is_control or batch.header.record_count == 0:
        return None
    key = decode_batch(batch, check_crc=check_crc).key[0].as_py()
    try:
        return ControlType.parse(key or b"")
    except ValueError as error:
        raise CorruptBatch(f"control batch of {batch.where()} cannot be read: {error}") from error


class ReadCommittedFilter:
    """Decides batch by batch, in log order, for one Fetch answer.

    :param aborted: the answer's aborted transactions, in any order
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # Last element first: pop() takes the lowest first offset.
        self._waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._aborted: set[int] = set()

    def is_data(self, batch: RawBatch) -> bool:
        """Whether the batch holds committed records; batches must come in log order."""
        header = batch.header
        producer = header.producer_id
        if producer == NO_PRODUCER_ID:
            return not header.is_control
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._aborted.add(self._waiting.pop()[1])
        if header.is_control:
            if control_type(batch) is ControlType.ABORT:
                self._aborted.discard(producer)
            return False
        return not (header.is_transactional and producer in self._aborted)


def data_batches(
    batches: Iterable[RawBatch], aborted: Iterable[AbortedTransaction] | None
) -> Iterator[RawBatch]:
    """Batches that hold records for this reader.

    :param batches: one Fetch answer's batches, in log order
    :param aborted: the answer's aborted transactions for read_committed; ``None`` reads uncommitted
    """
    if aborted is None:
        return (batch for batch in batches if not batch.header.is_control)
    committed = ReadCommittedFilter(aborted)
    return (batch for batch in batches if committed.is_data(batch))
