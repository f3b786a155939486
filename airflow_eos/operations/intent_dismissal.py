"""Takes back an INTENT whose table no longer exists, which no run can settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.ledger import LedgerMessage, LedgerValue
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import Deployment
from airflow_eos.operations.intent_table import refuse_present


@dataclass(frozen=True, slots=True)
class DismissedIntent:
    """An INTENT, the table that it names, and whether it was taken back."""

    key: str
    partition: int
    intent: Intent
    done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "key": self.key,
            "partition": self.partition,
            "run_key": self.intent.key,
            "table": self.intent.sink,
            "ranges": [wanted.to_list() for wanted in self.intent.record.ranges],
            "done": self.done,
        }


def dismiss_intent(
    deployment: Deployment,
    key: str,
    table_of: Callable[[str], SinkTable] | None,
    *,
    routing: str,
    execute: bool = True,
) -> DismissedIntent:
    """Take an INTENT back whose table does not exist any more; the next run reads its records again.

    The table is checked after the fence of the INTENT's transactional id: an attempt that sleeps before its
    commit cannot publish afterwards, because its commit names the id of the deleted table.

    :param key: key in the ledger, ``intent:<transactional id>``.
    :param table_of: returns the table that an INTENT names, with the properties of its connection; None: the
        caller vouches that it does not exist.
    :param routing: the group of a cursor, else the pipeline.
    :param execute: False for a dry run.
    :raises ConfigurationError: there is no such INTENT, or its table exists and can tell.
    :raises OutcomeUnknown: nobody says whether the table exists, or an earlier transaction of the id is open.
    :raises NotYetVisible: it is taken back, but the marker is missing.
    """
    with ControlPlane(deployment) as control:
        ledger = control.verify_ledger(to_write=execute)
        place = control.authority.place(routing)
        transactional_id = key.removeprefix(keys.INTENTS)

        def look(values: Mapping[str, LedgerValue]) -> Intent:
            intent = _open(values, key)
            if table_of is not None:
                refuse_present(intent, transactional_id, table_of(intent.sink), ledger.topic_id)
            return intent

        if not execute:
            intent = look(control.authority.peek([key], routing=routing))
            return DismissedIntent(key, place.partition, intent, done=False)
        with control.writer.fenced(transactional_id, [place], may_end=False) as transaction:
            intent = look(control.authority.settle([key], routing=routing))
            transaction.commit([LedgerMessage(key, None, routing)])
            transaction.wait_until_seen()
    return DismissedIntent(key, place.partition, intent, done=True)


def _open(values: Mapping[str, LedgerValue], key: str) -> Intent:
    if key not in values:
        raise ConfigurationError(f"the ledger holds no open INTENT {key!r}; check --key and --routing")
    return Intent.from_json(values[key], key)
