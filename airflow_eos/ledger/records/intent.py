"""The record of an INTENT: announces the rows that a run is about to publish in a table.

It explains output that the table has and the ledger does not. The transaction that commits the run also
deletes the record: while it exists, only the table shows whether the rows were published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.dead_letter import DueLetters
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.table import EarlierRows, TableLayout
from airflow_eos.model.versioned import VersionedOfTransaction, integer, text

WITH_LETTERS = 2
"""Version of an INTENT with dead letters: a reader that does not know them must not commit the run."""


@dataclass(frozen=True, slots=True)
class Intent(VersionedOfTransaction):
    """The data for a run's commit once its rows are in the table; any attempt may make that commit.

    :param sink: the table's name.
    :param layout: the layout of the table for which the data files were written.
    :param token: fencing token in the table: the end of the ledger partition's log when this was written,
        after the fence, and therefore higher than that of each earlier INTENT of the id.
    :param record: the run's record, except for producer, receipt and time of the commit.
    :param offsets_group: consumer group the end offsets are committed to.
    :param replaces: rows of the run's earlier commits that the same commit of the table removes.
    """

    KIND = "intent"
    VERSIONS = (1, WITH_LETTERS)

    sink: str
    layout: TableLayout
    token: int
    record: RunRecord
    offsets_group: str
    messages: tuple[LedgerMessage, ...]
    replaces: tuple[EarlierRows, ...] = ()
    letters: DueLetters | None = None

    @property
    def key(self) -> str:
        """The run key."""
        return self.record.run_key

    def is_same(self, other: Intent | None) -> bool:
        """Return whether another INTENT of the same id is this one: tokens only grow."""
        return other is not None and self.token == other.token

    def _content(self) -> Mapping[str, Any]:
        with_letters = {} if self.letters is None else {"v": WITH_LETTERS, "letters": self.letters.to_dict()}
        return {
            "sink": self.sink,
            "layout": [self.layout.uuid, self.layout.schema_id, self.layout.spec_id],
            "token": self.token,
            "record": json.loads(self.record.to_json()),
            "offsets_group": self.offsets_group,
            "messages": [[message.key, message.value, message.routing] for message in self.messages],
            **({"replaces": [rows.to_dict() for rows in self.replaces]} if self.replaces else {}),
            **with_letters,
        }

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Intent:
        uuid, schema_id, spec_id = data["layout"]
        return cls(
            sink=text(data["sink"]),
            layout=TableLayout(text(uuid), integer(schema_id), integer(spec_id)),
            token=integer(data["token"], 0),
            record=RunRecord.from_json(json.dumps(data["record"])),
            offsets_group=text(data["offsets_group"]),
            messages=tuple(LedgerMessage(text(k), text(v), text(r)) for k, v, r in data["messages"]),
            replaces=tuple(map(EarlierRows.from_dict, data.get("replaces", ()))),
            letters=DueLetters.from_dict(data["letters"]) if "letters" in data else None,
        )
