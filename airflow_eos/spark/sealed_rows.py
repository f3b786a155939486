"""The rows that travel from seal tasks to owner tasks: sealed batches, and trailers that count them.

========================  ==============  =========================================================
row                       batch           seq, records
========================  ==============  =========================================================
a sealed batch            its bytes       number of the batch, from 0, per target and seal task
trailer of a target       null            number of batches and records this task sealed for it
trailer of the seal task  null, no topic  number of targets and records of the task; goes to owner 0
trailer of a slice        null, no topic  late records, and records read; if the seal task itself reads
trailer of dead letters   JSON, no topic  0, and records on which the process raised, if there are any.
                                          The JSON lists place and error of the first one; of all of them
                                          if the sink is a table
========================  ==============  =========================================================

Every row has the number of its seal task (``seal_partition``) and Spark's unique id of its attempt. A task
that runs again after its first output was read leaves rows of two attempts: a transform that is not
deterministic may have put one record into both, or into none. Such rows are never sent.
"""

from __future__ import annotations

from collections.abc import Sequence

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
"""Partition number in the trailer of a seal task."""
DEAD_TRAILER_PARTITION = -2
"""Partition number in the trailer of a seal task's dead letters."""
READ_TRAILER_PARTITION = -3
"""Partition number in the trailer of slice 0; slice n has this number minus n."""


Row = tuple[int, "str | None", int, int, int, "bytes | None"]
"""Owner, topic, partition, seq, records and batch of a row; see the table above."""


def sealed_rows(seal_partition: int, attempt_id: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return the rows, at least one, of one attempt of a seal task as one batch of :data:`SCHEMA`."""
    owner, topic, partition, seq, records, batch = zip(*rows, strict=True)
    task = [[seal_partition] * len(rows), [attempt_id] * len(rows)]
    columns = (owner, topic, partition, *task, seq, records, batch)
    return pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)
