"""Describes the records of a batch that a broker refused, if its answer names them (KIP-467)."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_eos.exceptions import DecodeError
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.recordbatch.decode import decode_batch
from airflow_eos.recordbatch.header import iter_batches

_NAMED = 3
_KEY_BYTES = 100


def refused_records(tp: TopicPartition, data: bytes, indices: Sequence[int]) -> str:
    """Return key and timestamp of the first refused records, for messages; empty if they are unknown.

    :param data: the batch.
    :param indices: indexes of the refused records in the batch (``batch_index`` of the answer).
    """
    try:
        (raw,) = iter_batches(data, tp.topic, tp.partition)
        records = decode_batch(raw, check_crc=False, headers=False)
    except (DecodeError, ValueError):
        return ""
    named = [
        f"record {index} with key {str(records.key[index].as_py())[:_KEY_BYTES]} and timestamp "
        f"{records.timestamp[index]} ms"
        for index in indices[:_NAMED]
        if 0 <= index < len(records)
    ]
    if len(indices) > len(named) > 0:
        named.append(f"{len(indices) - len(named)} more")
    return f"; refused of the batch: {', '.join(named)}" if named else ""
