"""Takes back an INTENT whose table no longer exists, which no run can settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.spec import Deployment
from airflow_eos.table_ports import TableSink


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


def is_intent(key: str) -> bool:
    """Return whether a ledger key is that of an INTENT."""
    return key.startswith(keys.INTENTS)


def dismiss_intent(
    deployment: Deployment,
    key: str,
    table_of: Callable[[str], TableSink] | None,
    *,
    routing: str,
    execute: bool = True,
) -> DismissedIntent:
    """Take an INTENT back whose table does not exist any more; the next run reads its records again.

    The table is checked after the fence of the INTENT's transactional id: an attempt that sleeps before its
    commit cannot publish afterwards, because its commit names the id of the deleted table.

    :param key: key in the ledger, ``intent:<transactional id>``.
    :param table_of: opens the table of an INTENT; None: the caller vouches that it does not exist.
    :param routing: the group of a cursor, else the pipeline.
    :param execute: False for a dry run.
    :raises ConfigurationError: there is no such INTENT, or its table exists and can tell.
    :raises OutcomeUnknown: the catalog does not answer, or an earlier transaction of the id is still open.
    :raises NotYetVisible: it is taken back, but the marker is missing.
    """
    with ControlPlane(deployment) as control:
        control.verify_ledger(to_write=execute)
        place = control.authority.place(routing)
        if not execute:
            intent = _open(control.authority.peek([key], routing=routing), key)
            _refuse_present(intent, table_of)
            return DismissedIntent(key, place.partition, intent, done=False)
        with control.writer.fenced(key.removeprefix(keys.INTENTS), [place], may_end=False) as transaction:
            intent = _open(control.authority.settle([key], routing=routing), key)
            _refuse_present(intent, table_of)
            transaction.commit([LedgerMessage(key, None, routing)])
            transaction.wait_until_seen()
    return DismissedIntent(key, place.partition, intent, done=True)


def _open(values: Mapping[str, str], key: str) -> Intent:
    if key not in values:
        raise ConfigurationError(f"the ledger holds no open INTENT {key!r}; check --key and --routing")
    return Intent.from_json(values[key], key)


def _refuse_present(intent: Intent, table_of: Callable[[str], TableSink] | None) -> None:
    if table_of is None:
        return
    table = table_of(intent.sink)
    try:
        uuid = table.load().layout.uuid
    except UnknownTable as unknown:
        if unknown.is_missing:
            return
        raise
    except OutcomeUnknown as unknown:
        raise OutcomeUnknown(
            f"{unknown.message}. Where the table is known to be gone, say --table-gone"
        ) from unknown
    finally:
        table.close()
    if uuid == intent.layout.uuid:
        raise ConfigurationError(
            f"{intent.sink} still is the table that run {intent.key} was about to publish in, and can tell "
            "whether it did: run the pipeline once with it as the sink"
        )
