"""The doctor's checks of a table; writes only a test file, and deletes it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import EosError, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.operations.table_inspection import RunKeys, TableInspection
from airflow_eos.sinks.opening import open_table


def table_checks(table: SinkTable, run_keys: RunKeys) -> Iterator[Check]:
    """Check that runs can write a table, and list leftovers of dead attempts; shows no connection secrets.

    An error of a library becomes a check, so that other tables are still checked.
    """
    name = f"table {table}"
    if isinstance(table, PostgresTable):
        open_table(table, "")  # refuses where psycopg is not installed
        from airflow_eos.operations.postgres_checks import postgres_checks

        yield from postgres_checks(table, run_keys)
        return
    if not isinstance(table, IcebergTable | DeltaTable):
        yield Check(name, "unknown", f"{table.KIND!r} tables are not looked at")
        return
    # No pipeline's property or ids of transactions: the checks read all properties.
    with closing(open_table(table, property_name="")) as sink:
        try:
            inspection = inspection_of(table, sink.load())
        except EosError as error:
            system = "the catalog" if isinstance(table, IcebergTable) else "the store"
            unreachable = f"check the connection, and that {system} can be reached"
            advice = "" if isinstance(error, UnknownTable) else unreachable
            yield Check(name, "fail", error_line(error), advice)
            return
        try:
            yield from inspection.checks(run_keys)
        except EosError:
            raise
        except Exception as error:  # noqa: BLE001 - of any catalog, of any storage
            advice = (
                "give the connection's principal the right to read the table's metadata and list its files"
            )
            yield Check(f"{name} look", "unknown", inspection.reason(error), advice)


def inspection_of(table: IcebergTable | DeltaTable, version: Any) -> TableInspection:
    """Return the inspection for a table of data files."""
    if isinstance(table, IcebergTable):
        from airflow_eos.operations.iceberg_inspection import IcebergInspection

        return IcebergInspection(table, version)
    from airflow_eos.operations.delta_inspection import DeltaInspection

    return DeltaInspection(table, version)


def run_keys_by_digest(control: ControlPlane) -> dict[str, str]:
    """Return the run keys of committed runs and open INTENTs by their digest; reads the whole ledger."""
    names = []
    for partition in range(control.verify_ledger().partitions):
        view = control.ledger.view(partition, (), (keys.RUN_RECORDS, keys.INTENTS))
        for key, value in answer_of(view).committed.items():
            if keys.is_run_record(key):
                names.append(key.removeprefix(keys.RUN_RECORDS))
            else:
                names.append(Intent.from_json(value, key).key)
    return {keys.pruned_digest(name): name for name in names}
