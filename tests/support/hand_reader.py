"""A run history that a test fills by hand, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_eos.broker.ledger_log.reader import LedgerChange
from airflow_eos.ledger import keys
from airflow_eos.model.ledger import LedgerValue
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.spec import Deployment
from airflow_eos.ui.history import RunHistory
from tests.support.run_records import run_record

RUN = run_record()


class HandReader:
    """A ledger reader that yields the changes a test has added."""

    def __init__(self) -> None:
        self.coming: list[LedgerChange] = []
        self.everything: list[LedgerChange] = []
        self.starts = 0
        self.left = 0
        self.ignored: dict[str, tuple[int, int]] = {}

    def put(self, key: str, value: str | None) -> None:
        """Add a record, or a tombstone."""
        offset = len(self.everything)
        text = None if value is None else LedgerValue(value, 0, offset)
        self.everything.append(LedgerChange(0, offset, key, text))
        self.coming.append(self.everything[-1])

    def put_run(self, number: int, pipeline: str = "p", topic: str = "t") -> str:
        """Add a run that read one offset, its number; return its key."""
        key = keys.cursor_run_key(pipeline, str(number))
        record = replace(
            RUN,
            run_key=key,
            pipeline=pipeline,
            run_id=str(number),
            ranges=(OffsetRange(topic, 0, number, number + 1),),
        )
        self.put(keys.run_record_key(key), record.to_json())
        return key

    def look(self) -> bool:
        """Return that nothing read so far became invalid."""
        return False

    def start_over(self) -> None:
        """Make the next read yield everything again."""
        self.starts += 1
        self.coming = list(self.everything)

    def changes(self) -> Iterator[LedgerChange]:
        """Return the changes since the last call."""
        coming, self.coming = self.coming, []
        return iter(coming)


def history_by_hand(reader: HandReader, **bounds: Any) -> RunHistory:
    """Return a history that uses the reader."""
    history = RunHistory(Deployment({"bootstrap.servers": "broker:1"}), **bounds)
    history.reader, history._verified = reader, True  # type: ignore[assignment]
    return history
