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


def control_type(batch: RawBatch) -> ControlType | None:
    """Type of a control batch; ``None`` for data, and for a control batch that compaction has emptied.

    :raises CorruptBatch: the batch or its key cannot be read
    """
    if not batch.header.is_control or batch.header.record_count == 0:
        return None
    key = decode_batch(batch).key[0].as_py()
    try:
        return ControlType.parse(key or b"")
    except ValueError as error:
        raise CorruptBatch(f"control batch of {batch.location()} cannot be read: {error}") from error


def data_batches(
    batches: Iterable[RawBatch], aborted: Iterable[AbortedTransaction] | None
) -> Iterator[RawBatch]:
    """Batches that hold records for this reader.

    :param batches: one Fetch answer's batches, in log order
    :param aborted: the answer's aborted transactions for read_committed, in any order; ``None`` reads
        uncommitted
    """
    # The lowest first offset is last: pop() takes it.
    waiting = sorted(((first, producer) for producer, first in aborted or ()), reverse=True)
    hidden: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[-1][0] <= header.last_offset:
            hidden.add(waiting.pop()[1])
        if not header.is_control:
            if not (header.is_transactional and header.producer_id in hidden):
                yield batch
            continue
        is_checked = aborted is not None and header.producer_id != NO_PRODUCER_ID
        if is_checked and control_type(batch) is ControlType.ABORT:
            hidden.discard(header.producer_id)
