"""Dismisses an INTENT whose table no longer exists, which no run can settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, OutcomeUnknown, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.ledger import LedgerMessage, LedgerValue
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.model.spec import Deployment
from airflow_eos.model.versioned import JsonForm
from airflow_eos.run.publishing import Claim, published_by, token_is_stale
from airflow_eos.sinks.opening import open_table
from airflow_eos.table_ports import TableSink, TableVersion


@dataclass(frozen=True, slots=True)
class DismissedIntent(JsonForm):
    """An INTENT, the table that it names, its run's offset ranges, and whether it was dismissed."""

    key: str
    partition: int
    run_key: str
    table: str
    ranges: Sequence[list[Any]]
    done: bool


def dismiss_intent(
    deployment: Deployment,
    key: str,
    table_of: Callable[[str], SinkTable] | None,
    *,
    routing: str,
    execute: bool = True,
) -> DismissedIntent:
    """Dismiss an INTENT whose table no longer exists; the next run reads its records again.

    The table is checked after fencing the INTENT's transactional id: an attempt that is paused before its
    commit cannot publish afterwards, because its commit names the id of the deleted table.

    :param key: key in the ledger, ``intent:<transactional id>``.
    :param table_of: returns the table that an INTENT names, with the properties of its connection; None: the
        caller asserts that it does not exist.
    :param routing: the group of a cursor, else the pipeline.
    :param execute: False for a dry run.
    :raises ConfigurationError: there is no such INTENT, or its table exists and shows the run's outcome.
    :raises OutcomeUnknown: whether the table exists is unknown, or an earlier transaction of the id is open.
    :raises NotYetVisible: it is dismissed, but the marker is missing.
    """
    with ControlPlane(deployment) as control:
        ledger = control.verify_ledger(to_write=execute)
        place = control.authority.place(routing)
        transactional_id = key.removeprefix(keys.INTENTS)

        def look(values: Mapping[str, LedgerValue]) -> Intent:
            if key not in values:
                raise ConfigurationError(
                    f"the ledger holds no open INTENT {key!r}; check --key and --routing"
                )
            intent = Intent.from_json(values[key], key)
            if table_of is not None:
                refuse_present(intent, transactional_id, table_of(intent.sink), ledger.topic_id)
            return intent

        if not execute:
            intent = look(control.authority.peek([key], routing=routing))
        else:
            with control.writer.fenced(transactional_id, [place], may_end=False) as transaction:
                intent = look(control.authority.settle([key], routing=routing))
                transaction.commit([LedgerMessage(key, None, routing)])
                transaction.wait_until_seen()
    ranges = [offsets.to_list() for offsets in intent.record.ranges]
    return DismissedIntent(key, place.partition, intent.key, intent.sink, ranges, done=execute)


def refuse_present(intent: Intent, transactional_id: str, table: SinkTable, ledger_topic_id: str) -> None:
    """Raise unless the table that a run was about to publish in no longer exists.

    :param table: the table, with the properties of its connection.
    :raises ConfigurationError: the table exists and shows whether the run published, or the connection is
        not valid.
    :raises UnknownTable: a table of that name exists and cannot be written, or it has another name now.
    :raises AuthorizationFailed: the table exists, and this role may not write it.
    :raises OutcomeUnknown: catalog, store or database do not show whether the table exists.
    """
    try:
        if isinstance(table, PostgresTable) and _is_dropped(table, intent, transactional_id):
            return
        name = keys.table_property(ledger_topic_id, intent.record.group_id, table.branch_name)
        with closing(open_table(table, name)) as sink:
            version = _version_of(sink, table, intent)
            if version is None:
                return
            claim = Claim.of(intent, transactional_id, table.branch_name, "")
            if version.layout.uuid == intent.layout.uuid and published_by(version, claim) is None:
                _refuse_unwritable(sink)
    except (ConfigurationError, OutcomeUnknown) as unknown:
        raise type(unknown)(
            f"{unknown.message}. Where the table is known to be gone, say --table-gone"
        ) from unknown
    if version.layout.uuid == intent.layout.uuid:
        raise ConfigurationError(
            f"{intent.sink} still is the table that run {intent.key} was about to publish in, and can tell "
            f"whether it did: {_answer(version, claim)}. Run the pipeline once with it as the sink"
        )


def _is_dropped(table: PostgresTable, intent: Intent, transactional_id: str) -> bool:
    """Return whether the table was dropped, by ``airflow_eos.published``: loading a sink would add a row."""
    from airflow_eos.operations.postgres_checks import place_now

    name, published, has_successor = place_now(table, intent.layout.uuid)
    if name and name != table.name:
        raise _renamed(intent, name)
    run = published.runs.get(keys.table_scope(transactional_id, table.branch_name))
    is_other = run is None or (run.key, run.token) != (intent.key, intent.token)
    receipt = None if run is None or is_other else run.receipt
    if not name and has_successor and receipt is not None and receipt.rows:
        raise ConfigurationError(
            f"{intent.sink} had the run's rows ({receipt.rows}), and is another table now: one that was "
            "copied, or restored from a dump, has them too, and the next run would write them again. Look: "
            "delete them, or move the cursor past them"
        )
    return not name


def _version_of(sink: Any, table: SinkTable, intent: Intent) -> TableVersion | None:
    """Return the table; None if it does not exist. An Iceberg table that was renamed is refused."""
    try:
        version: TableVersion = sink.load(to_write=False)
    except UnknownTable as unknown:
        if not unknown.is_missing:
            raise UnknownTable(
                f"{unknown.message}. Where the table is known to be gone, say --table-gone"
            ) from None
    else:
        return version
    if isinstance(table, IcebergTable) and (name := sink.name_of(intent.layout.uuid)) is not None:
        raise _renamed(intent, name)
    return None


def _renamed(intent: Intent, name: str) -> UnknownTable:
    return UnknownTable(
        f"{intent.sink}, in which run {intent.key} was about to publish, is {name} now: "
        "rename it back and run the pipeline once with it as the sink"
    )


def _refuse_unwritable(sink: TableSink) -> None:
    try:
        sink.load()
    except (AuthorizationFailed, UnknownTable) as unwritable:
        raise type(unwritable)(
            f"{unwritable.message}. It does not have the run's rows: let it be written and run the "
            "pipeline once with it as the sink or, where that cannot be, say --table-gone"
        ) from None


def _answer(version: TableVersion, claim: Claim) -> str:
    receipt = published_by(version, claim)
    if receipt is not None:
        return f"it has the run's rows ({receipt.rows}, in snapshot {receipt.snapshot})"
    if token_is_stale(version, claim):
        return "it does not have the run's rows, and will not get them any more"
    return "it does not have the run's rows"
