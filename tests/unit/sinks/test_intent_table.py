"""A table's evidence for taking an INTENT back: each kind of table, with each fate."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, OutcomeUnknown, UnknownTable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.operations import intent_dismissal
from airflow_eos.operations.intent_dismissal import refuse_present
from airflow_eos.sinks.opening import open_table, table_named
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.postgres_tables import Database
from tests.support.publishing import PublishingAttempt
from tests.support.run_records import run_record

ID, LEDGER, RUN = "eos.cursor.g", "ledger-id", "run/p/1"


class DroppableDatabase(Database):
    """A database whose table is dropped and recreated like those in files."""

    def drop(self):
        self.sql(f"DROP TABLE {self.table}")


@pytest.fixture(params=["iceberg", "delta", pytest.param("postgres", marks=pytest.mark.process)])
def place(request, tmp_path):
    """A table of each kind, which can be dropped and recreated."""
    if request.param == "postgres":
        table = DroppableDatabase(request.getfixturevalue("postgres_server"))
        table.create()
        yield table
        return
    table = {"iceberg": IcebergLake, "delta": DeltaLake}[request.param](tmp_path)
    yield table
    table.close()


class Attempt(PublishingAttempt):
    """An attempt that has written its INTENT."""

    def __init__(self, place):
        record = run_record(run_key=RUN, group_id="g")
        sink = place.sink()
        opened = open_table(sink, keys.table_property(LEDGER, record.group_id, sink.branch_name))
        super().__init__(opened, RUN, keys.table_scope(ID, sink.branch_name), token=10, lasting=True)
        self.intent = Intent(str(sink), self.version.layout, 10, record, "g", ())
        self.table = sink

    def ask(self, **changes):
        refuse_present(self.intent, ID, replace(self.table, **changes), LEDGER)


def test_a_table_that_is_there_says_whether_it_has_the_rows(place):
    """Before the commit, after it, and after a bar of the claim; the run can be settled each time."""
    attempt = Attempt(place)
    with pytest.raises(ConfigurationError, match=r"it does not have the run's rows\. Run the pipeline once"):
        attempt.ask()
    receipt = attempt.publish()
    with pytest.raises(
        ConfigurationError, match=rf"has the run's rows \(0, in snapshot {receipt.snapshot}\)"
    ):
        attempt.ask()


def test_a_table_says_that_the_run_was_barred(place):
    """A newer attempt barred it, and died before it took the INTENT back."""
    attempt = Attempt(place)
    assert attempt.publisher.settle(attempt.claim) is None
    with pytest.raises(ConfigurationError, match="will not get them any more"):
        attempt.ask()


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "dropped and recreated"])
def test_a_table_that_is_gone_keeps_no_intent(place, again):
    """Whether or not another one has its name; the check creates nothing in the new one."""
    attempt = Attempt(place)
    attempt.publish()
    place.drop()
    if not again:
        attempt.ask()
        return
    place.create()
    before = written_in(place)
    attempt.ask()
    assert written_in(place) == before


def written_in(place):
    """Return what a run or a look has left in the table that has the name now."""
    if isinstance(place, IcebergLake):
        return place.table.metadata_location
    if isinstance(place, DeltaLake):
        return place.commits()
    return place.sql(f"SELECT id FROM airflow_eos.published WHERE target = '{place.table}'::regclass")


def test_an_iceberg_table_that_was_renamed_is_not_gone(tmp_path):
    """It has the run's rows: under its new name it would get them again."""
    lake = IcebergLake(tmp_path)
    attempt = Attempt(lake)
    attempt.publish()
    lake.rename("db.other")
    with pytest.raises(UnknownTable, match=r"is db\.other now: rename it back and run the pipeline once"):
        attempt.ask()
    lake.close()


def test_the_name_in_an_intent_is_enough_to_ask(place):
    """The connection's properties are added to it."""
    sink = place.sink()
    assert table_named(str(sink)) == replace(sink, **({"connection": None} if sink.KIND == "delta" else {}))
    assert table_named("paimon:c/db.t") is None


# -- PostgreSQL: the row about published runs is the evidence -----------------------------------------------


def test_a_row_that_was_deleted_is_no_proof_that_the_table_is_gone(database):
    """The table has the run's rows, and loading it with a sink would create a row with another id."""
    attempt = Attempt(database)
    attempt.publish()
    database.sql(f"DELETE FROM airflow_eos.published WHERE id = '{attempt.intent.layout.uuid}'")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"the row was deleted\. Where .* say --table-gone"):
            attempt.ask()


def test_without_the_row_as_the_witness_an_intent_of_a_table_that_is_there_is_given_up(database, monkeypatch):
    """Counter-test: the sink creates a row when it loads the table, with another id."""
    attempt = Attempt(database)
    attempt.publish()
    database.sql(f"DELETE FROM airflow_eos.published WHERE id = '{attempt.intent.layout.uuid}'")
    monkeypatch.setattr(intent_dismissal, "_is_dropped", lambda *_: False)
    attempt.ask()


def test_another_database_is_no_proof_that_the_table_is_gone(database):
    """It has no table of that name, and perhaps not even the schema of this package."""
    attempt = Attempt(database)
    elsewheres = {"template1": OutcomeUnknown, f"none_{database.schema}": ConfigurationError}
    for elsewhere, error in elsewheres.items():
        with pytest.raises(error, match="say --table-gone"):
            attempt.ask(properties={**database.properties, "dbname": elsewhere})


def test_a_table_that_was_renamed_is_there(database):
    """It has the rows of the run, under another name."""
    attempt = Attempt(database)
    attempt.publish()
    database.sql(f"ALTER TABLE {database.table} RENAME TO u; CREATE TABLE {database.table} (id bigint)")
    with pytest.raises(UnknownTable, match=rf"is {database.schema}\.u now: rename it back"):
        attempt.ask()


def test_a_table_that_a_role_may_no_longer_write_does_not_have_the_rows(database):
    """The role may get its privilege again, and then takes the INTENT back by itself."""
    attempt, role = Attempt(database), f"r{database.schema}"
    database.sql(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA airflow_eos, {database.schema} TO {role}; "
        f"GRANT SELECT, INSERT ON airflow_eos.published TO {role}; GRANT SELECT ON {database.table} TO {role}"
    )
    try:
        with pytest.raises(AuthorizationFailed, match=r"does not have the run's rows: .* say --table-gone"):
            attempt.ask(properties={**database.properties, "user": role})
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_that_was_restored_from_a_dump_may_have_the_rows(database):
    """It has another oid: to the sink it is another table. One that never had the rows is given up."""
    first, second = Attempt(database), Attempt(database)
    writer = first.sink.writer(first.version, "a" * 20)
    first.files += writer.write(writer.columns(pa.table({"id": [1]})))
    second.intent = replace(second.intent, token=20)
    first.publish()
    database.sql(
        f"CREATE TABLE {database.schema}.u AS TABLE {database.table}; DROP TABLE {database.table}; "
        f"ALTER TABLE {database.schema}.u RENAME TO t"
    )
    with pytest.raises(ConfigurationError, match=r"had the run's rows \(1\), .* from a dump, .*--table-gone"):
        first.ask()
    second.ask()
    # In another database the number may belong to any object.
    database.sql(
        "UPDATE airflow_eos.published SET target = 'pg_class_oid_index'::regclass "
        f"WHERE id = '{first.intent.layout.uuid}'"
    )
    with pytest.raises(ConfigurationError, match="restored from a dump"):
        first.ask()
    database.sql(f"DROP TABLE {database.table}")
    first.ask()


# -- Delta Lake: a folder is the evidence -------------------------------------------------------------------


def test_a_file_system_that_is_not_mounted_is_no_proof_that_the_table_is_gone(delta, tmp_path):
    """The parent folder is missing, too."""
    attempt = Attempt(delta)
    delta.folder.parent.rename(tmp_path.with_name(f"{tmp_path.name}-elsewhere"))
    with pytest.raises(UnknownTable, match="or mount its file system"):
        attempt.ask()


BUCKET = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_list, is_root = "list-type" in self.path, "prefix=t" not in self.path
        body = f"<ListBucketResult>{sys.argv[1] if is_root else ''}</ListBucketResult>".encode()
        self.send_response(200 if is_list else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""A store whose bucket has only what its argument lists. In a process: delta-rs keeps the GIL."""


@pytest.mark.process
@pytest.mark.parametrize("beside", ["", "<CommonPrefixes><Prefix>other/</Prefix></CommonPrefixes>"])
def test_a_store_with_nothing_beside_the_table_is_no_proof_that_it_is_gone(delta, beside):
    """The endpoint may belong to another store: the next run would write again what the table has."""
    attempt = Attempt(delta)
    command = [sys.executable, "-c", BUCKET, beside]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as store:
        try:
            options = {
                "aws_endpoint_url": f"http://127.0.0.1:{store.stdout.readline().strip()}",
                "aws_allow_http": "true",
                "aws_region": "r",
                "aws_access_key_id": "k",
                "aws_secret_access_key": "s",
            }
            attempt.table = DeltaTable("s3://lake/t", properties=options)
            with nullcontext() if beside else pytest.raises(UnknownTable, match=r"endpoint.* --table-gone"):
                attempt.ask()
        finally:
            store.kill()


# -- Iceberg: the namespace is the evidence -----------------------------------------------------------------


def test_another_catalog_is_no_proof_that_the_table_is_gone(tmp_path):
    """It lacks the namespace, too."""
    attempt = Attempt(IcebergLake(tmp_path))
    other = {**attempt.table.properties, "uri": f"sqlite:///{tmp_path}/other.db"}
    with pytest.raises(OutcomeUnknown, match=r"NoSuchNamespaceError.*say --table-gone"):
        attempt.ask(properties=other)
