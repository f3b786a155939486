"""The doctor's checks of a table; writes only a file of its own, and deletes it again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TypeVar

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import EosError, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.authority import answer_of
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.iceberg_table import MAIN, IcebergTable
from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.operations.delta_inspection import DeltaInspection
from airflow_eos.operations.foreign_commits import other_writers
from airflow_eos.operations.iceberg_inspection import IcebergInspection
from airflow_eos.operations.table_inspection import UnnamedFile, fencing_tokens
from airflow_eos.operations.table_retention import retention_check
from airflow_eos.sinks.opening import open_table
from airflow_eos.wording import counted, some_of

Inspection = TypeVar("Inspection", IcebergInspection, DeltaInspection)
_SAFE_METADATA = 10
"""Commits that others may make between the catalog's answer and the read of the file that it names."""


def table_checks(table: SinkTable, run_keys: Callable[[], Mapping[str, str]]) -> Iterator[Check]:
    """Check that runs can write a table, and list what dead attempts left. Shows no secret of the connection.

    :param run_keys: returns the run keys of the ledger by their digest; called if something was left.
    """
    name = f"table {table}"
    match table:
        case IcebergTable():
            # Whichever property a pipeline has: all of them are read below.
            with closing(open_table(table, property_name="")) as sink:
                yield from _looks(
                    name,
                    "the catalog",
                    lambda: IcebergInspection(sink.load(), table.properties),
                    lambda inspection: _iceberg_looks(name, inspection, table.branch or MAIN, run_keys),
                )
        case DeltaTable():
            # Whichever ids the transactions of a pipeline have: the log does not list them.
            delta = open_table(table, property_name="")
            yield from _looks(
                name,
                "the store",
                lambda: DeltaInspection(delta.load(), table.uri, table.properties),
                lambda inspection: _delta_looks(name, inspection, run_keys),
            )
        case PostgresTable():
            open_table(table, "")  # refuses where psycopg is not installed
            from airflow_eos.operations.postgres_checks import postgres_checks

            yield from postgres_checks(table, run_keys)
        case _:
            yield Check(name, "unknown", f"{table.KIND!r} tables are not looked at")


def _looks(
    name: str,
    system: str,
    loaded: Callable[[], Inspection],
    looks: Callable[[Inspection], Iterator[Check]],
) -> Iterator[Check]:
    """Turn an error of a library into a check, so that those of other tables are made."""
    try:
        inspection = loaded()
    except EosError as error:
        unreachable = f"check the connection, and that {system} can be reached"
        yield Check(name, "fail", error_line(error), "" if isinstance(error, UnknownTable) else unreachable)
        return
    try:
        yield from looks(inspection)
    except EosError:
        raise
    except Exception as error:  # noqa: BLE001 - of any catalog, of any storage
        advice = "give the connection's principal the right to read the table's metadata and list its files"
        yield Check(f"{name} look", "unknown", inspection.reason(error), advice)


def _iceberg_looks(
    name: str, inspection: IcebergInspection, branch: str, run_keys: Callable[[], Mapping[str, str]]
) -> Iterator[Check]:
    yield Check(name, "ok", f"there, format version {inspection.format_version}, Parquet")
    yield _rights(name, "commits", "the catalog", inspection.refused_commit())
    yield _files(name, *inspection.write_refusals())
    yield fencing_tokens(name, inspection.published())
    yield other_writers(name, *inspection.recent_commits(branch))
    yield retention_check(f"{name} history", inspection.retention(branch))
    of_branch = inspection.branch_retention(branch)
    if of_branch is not None:
        yield retention_check(f"{name} branch", of_branch)
    yield _metadata_files(name, inspection.metadata_kept())
    yield from _unnamed(name, inspection.unnamed_files(), run_keys, "Iceberg's remove_orphan_files")


def _delta_looks(
    name: str, inspection: DeltaInspection, run_keys: Callable[[], Mapping[str, str]]
) -> Iterator[Check]:
    yield Check(name, "ok", f"there, writer version {inspection.writer_version}; runs can write it")
    yield _files(name, *inspection.write_refusals())
    yield other_writers(name, *inspection.recent_commits())
    yield retention_check(f"{name} history", inspection.log_retention())
    yield retention_check(f"{name} unpublished files", inspection.file_retention())
    yield from _unnamed(name, inspection.unnamed_files(), run_keys, "VACUUM")


def run_keys_by_digest(control: ControlPlane) -> dict[str, str]:
    """Return the keys of committed runs and of open INTENTs by their digest; reads the whole ledger."""
    names = []
    for partition in range(control.verify_ledger().partitions):
        view = control.ledger.view(partition, (), (keys.RUN_RECORDS, keys.INTENTS))
        for key, value in answer_of(view).committed.items():
            if keys.is_run_record(key):
                names.append(key.removeprefix(keys.RUN_RECORDS))
            else:
                names.append(Intent.from_json(value, key).key)
    return {keys.pruned_digest(name): name for name in names}


def _metadata_files(name: str, kept: int | None) -> Check:
    subject = f"{name} metadata files"
    if kept is None:
        return Check(subject, "ok", "no commit deletes earlier ones")
    finding = f"a commit leaves the last {kept} (write.metadata.delete-after-commit.enabled)"
    if kept >= _SAFE_METADATA:
        return Check(subject, "ok", finding)
    return Check(
        subject,
        "warn",
        finding,
        f"set write.metadata.previous-versions-max to {_SAFE_METADATA} or more: a run that reads the table "
        "while others commit finds its metadata deleted, and tries again; rows stay exact",
    )


def _rights(name: str, objects: str, system: str, refusal: str) -> Check:
    if refusal:
        advice = f"give the connection's principal the right to change the table, then to write its {objects}"
        return Check(f"{name} {objects}", "fail", f"{system} refused: {refusal}", advice)
    taken = "a commit that changes nothing" if objects == "commits" else "a file, which is deleted again"
    return Check(f"{name} {objects}", "ok", f"{system} took {taken}")


def _files(name: str, refused: str, kept: str) -> Check:
    """Say whether the storage took a small file and deleted it again; a text is why it did not."""
    if refused or not kept:
        return _rights(name, "files", "the storage", refused)
    return Check(
        f"{name} files",
        "warn",
        f"the storage took a file, and did not delete it again: {kept}",
        "runs need no right to delete; remove the file (.airflow-eos-doctor-...) with the orphan files",
    )


def _unnamed(
    name: str,
    files: list[UnnamedFile] | None,
    run_keys: Callable[[], Mapping[str, str]],
    removal: str,
) -> Iterator[Check]:
    """Say which data files no commit of a table names; None: the storage does not list them."""
    subject = f"{name} unnamed files"
    if files is None:
        yield Check(subject, "unknown", "files of this storage cannot be listed")
        return
    if not files:
        yield Check(subject, "ok", "each data file of a run is named by a snapshot")
        return
    by_label: dict[str, list[UnnamedFile]] = defaultdict(list)
    for file in files:
        by_label[file.label].append(file)
    labels = run_keys()
    shown = [_attempt(label, of_run, labels) for label, of_run in by_label.items()]
    advice = (
        "attempts that died left them, or a run at work has not published them yet; "
        f"{removal} deletes old ones"
    )
    yield Check(subject, "warn", some_of(shown, 10), advice)


def _attempt(label: str, files: list[UnnamedFile], run_keys: Mapping[str, str]) -> str:
    of_run = run_keys.get(label, f"a run that the ledger does not hold (digest {label})")
    moments = [file.modified for file in files if file.modified is not None]
    since = f", the last of {keys.utc_text(max(moments))}" if moments else ""
    size = sum(file.size for file in files)
    return f"{counted(len(files), 'file')} ({size:,} bytes{since}) of {of_run}: {files[0].path}"
