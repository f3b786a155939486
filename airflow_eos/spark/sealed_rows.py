"""The rows that travel from seal tasks to owner tasks: sealed batches, and trailers that count them.

========================  ==============  =========================================================
row                       batch           seq, records
========================  ==============  =========================================================
a sealed batch            its bytes       number of the batch, from 0, per target and seal task
trailer of a target       null            number of batches and records this task sealed for it
trailer of the seal task  null, no topic  number of targets and records of the task; goes to owner 0
========================  ==============  =========================================================

Every row carries the number of its seal task (``seal_partition``) and Spark's unique id of the attempt that
made it. A task that was run again after its first output had been read leaves rows of two attempts: a
transform that is not deterministic may have put one record into both, or into none. Such rows are never sent.
"""

from __future__ import annotations

import pyarrow as pa

DDL = (
    "owner int, topic string, partition int, seal_partition int, attempt_id bigint, seq int, records bigint, "
    "batch binary"
)
SCHEMA = pa.schema(
    [
        ("owner", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("seal_partition", pa.int32()),
        ("attempt_id", pa.int64()),
        ("seq", pa.int32()),
        ("records", pa.int64()),
        ("batch", pa.binary()),
    ]
)
TASK_TRAILER_PARTITION = -1
