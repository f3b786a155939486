"""Kafka record batches, magic v2 (KIP-98): from Arrow columns and back. Pure: no client, no socket.

To write: ``partitioner.partitions_for`` and ``sealer.seal`` in one task, ``stamp.stamp`` in another. To read
a Fetch answer: ``header.iter_batches``, ``isolation.data_batches``, ``decode.decode_batches``.
"""

from __future__ import annotations
