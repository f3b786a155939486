"""Asks whether the table of an INTENT still exists; only then an INTENT may not be taken back."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.run.publishing import Claim, published_by, token_is_stale
from airflow_eos.sinks.iceberg import IcebergSink
from airflow_eos.sinks.opening import open_table

if TYPE_CHECKING:
    from airflow_eos.ledger.records.intent import Intent
    from airflow_eos.model.sink_table import SinkTable
    from airflow_eos.table_ports import TableSink, TableVersion


def refuse_present(intent: Intent, transactional_id: str, table: SinkTable, ledger_topic_id: str) -> None:
    """Return if the table that a run was about to publish in is gone.

    :param transactional_id: of the INTENT.
    :param table: that the INTENT names, with the properties of its connection.
    :param ledger_topic_id: id of the ledger's topic.
    :raises ConfigurationError: the table exists and can tell whether the run published, or it cannot be
        asked with what the connection says.
    :raises UnknownTable: a table of that name exists and cannot be written, or it has another name now.
    :raises OutcomeUnknown: catalog, store or database do not say whether the table exists.
    """
    try:
        if isinstance(table, PostgresTable) and _is_dropped(table, intent, transactional_id):
            return
        name = keys.table_property(ledger_topic_id, intent.record.group_id, table.branch_name)
        with closing(open_table(table, name)) as sink:
            version = _version_of(sink, intent)
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
    """Ask for the row of ``airflow_eos.published``: a look by a sink makes it where it is missing.

    :raises ConfigurationError: it was dropped with the run's rows, and another table, which may be a copy or
        restored from a dump, has its name.
    """
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


def _version_of(sink: TableSink, intent: Intent) -> TableVersion | None:
    """Return the table under its name; None if it does not exist.

    :raises UnknownTable: it has another name now, which catalogs of Iceberg tell.
    """
    try:
        return sink.load(to_write=False)
    except UnknownTable as unknown:
        if not unknown.is_missing:
            raise UnknownTable(
                f"{unknown.message}. Where the table is known to be gone, say --table-gone"
            ) from None
    if isinstance(sink, IcebergSink) and (name := sink.name_of(intent.layout.uuid)) is not None:
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
    except UnknownTable as unwritable:
        raise UnknownTable(
            f"{unwritable.message}. It does not have the run's rows: let it be written again and run the "
            "pipeline once with it as the sink or, where that cannot be, say --table-gone"
        ) from None


def _answer(version: TableVersion, claim: Claim) -> str:
    receipt = published_by(version, claim)
    if receipt is not None:
        return f"it has the run's rows ({receipt.rows}, in snapshot {receipt.snapshot})"
    if token_is_stale(version, claim):
        return "it does not have the run's rows, and will not get them any more"
    return "it does not have the run's rows"
