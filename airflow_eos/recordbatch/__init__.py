"""Kafka record batches, magic v2 (KIP-98): from Arrow columns and back. Pure: no client, no socket.

Write path (seal in one task, stamp and send in another)::

    partitioner.partitions_for(rows, partitions, topic=, key=, explicit=, seed=) -> int32 array
    compression.Compressor(codec="zstd")
    sealer.seal(value, partition, topic=, key=, timestamp=, headers=, compressor=, batch_bytes=,
                max_message_bytes=)
        -> iterator of SealedBatch(partition, records, max_timestamp, data): partitions ascending, input order
    stamp.stamp(data, producer_id, producer_epoch, base_sequence) -> bytes to send
    stamp.next_sequence(sequence, records) -> int

Read path (one Fetch answer of one partition)::

    header.iter_batches(blob, topic, partition) -> iterator of RawBatch(header, data, topic, partition)
    isolation.data_batches(batches, aborted) -> iterator of the RawBatches a reader sees;
        aborted = [(producer id, first offset)] for read_committed, None for read_uncommitted
    decode.decode_batch(batch, start=, end=, check_crc=True)
        -> DecodedBatch(key, value, offset, timestamp, timestamp_type, headers)
    decode.decode_batches(batches, start=, end=, check_crc=True)
        -> iterator of DecodedBatch, small neighbouring batches together: four times faster on those
    isolation.control_type(batch) -> ControlType.COMMIT | ControlType.ABORT | ... | None for data

``batch.header.next_offset`` is where reading goes on, also behind aborted, control and emptied batches.
Columns are Arrow ``binary`` for keys and values, NumPy int64 for offsets and timestamps (milliseconds), and
``list<struct<key: string, value: binary>>`` or ``None`` for headers.
"""

from __future__ import annotations
