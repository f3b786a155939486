"""A hand-written ledger partition, and Fetch answers that are cut as brokers cut them."""

from __future__ import annotations

from airflow_eos.recordbatch.header import iter_batches
from airflow_eos.wire.fetch import FetchedAnswer
from tests.support.record_batches import ABORT, TRANSACTIONAL, Record, marker, write


class HandWrittenLog:
    """A hand-written partition: batches, and the aborted transactions that a broker would report."""

    def __init__(self):
        self.batches = []
        self.end = 0
        self.first = {}  # first offset of each producer's open transaction
        self.aborted = []  # (producer id, first offset, offset of the marker)

    def write(self, producer, *rows):
        """Append records in a producer's transaction; outside any if ``producer`` is None."""
        offset = self.end
        if producer is not None:
            self.first.setdefault(producer, offset)
        records = [
            Record(offset + i, 0, key.encode(), None if value is None else value.encode())
            for i, (key, value) in enumerate(rows)
        ]
        self.batches.append(
            write(records, base_offset=offset)
            if producer is None
            else write(
                records, base_offset=offset, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0
            )
        )
        self.end += len(rows)

    def finish(self, producer, kind):
        first = self.first.pop(producer)
        if kind == ABORT:
            self.aborted.append((producer, first, self.end))
        self.batches.append(marker(kind, producer, self.end))
        self.end += 1

    @property
    def stable(self):
        return min(self.first.values(), default=self.end)

    def answers(self, start, end, isolation, sizes):
        """Yield Fetch answers of ``sizes`` batches each, plus a truncated next one, as brokers cut it."""
        batches = list(iter_batches(b"".join(self.batches), "ledger", 0))
        batches = [b for b in batches if b.header.next_offset > start and b.header.base_offset < end]
        position, at = start, 0
        for size in [*sizes, len(batches)]:
            page = batches[at : at + size]
            if not page:
                continue
            at += size
            data = b"".join(bytes(batch.data) for batch in page)
            data += bytes(batches[at].data)[:-1] if at < len(batches) else b""
            following = page[-1].header.next_offset
            # As a broker reports: transactions begun below the end, with a marker not below the position.
            aborted = tuple((p, f) for p, f, m in self.aborted if m >= position and f < following)
            yield FetchedAnswer(
                position,
                following,
                data,
                tuple(iter_batches(data, "ledger", 0)),
                aborted if isolation == "read_committed" else None,
            )
            position = following
