"""What is specific to Delta Lake tables: their log and its clean-up, and processes that race and die."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import deltalake
import pytest

from airflow_eos.exceptions import ConfigurationError, OutcomeUnknown, RunFenced, TableChanged, UnknownTable
from airflow_eos.model.delta_table import DeltaTable
from airflow_eos.model.table import PublishedRun, TableCommit
from airflow_eos.sinks import delta as delta_sink
from airflow_eos.sinks.delta import DeltaSink
from airflow_eos.sinks.delta_features import FEATURES, WRITER_VERSIONS
from airflow_eos.table_ports import TableMoved
from tests.support.lakes import DeltaLake
from tests.unit.sinks.test_publishing import PROPERTY, Attempt, append, names

# Forked from a process that has imported everything once; deltalake starts its threads at the first call.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.unit.sinks.test_publishing"])


def test_the_history_says_which_run_and_which_offsets_a_version_holds(delta):
    """The receipt names the version."""
    append(delta)
    receipt = Attempt(delta).publish()

    (entry, *_) = delta.table.history()
    assert (entry["version"], entry["eos.run-key"]) == (receipt.snapshot, "run/p/1")
    assert (receipt.snapshot, receipt.files, receipt.rows) == (2, 1, 2)


def optimized(lake):
    lake.table.optimize.compact()


def vacuumed(lake):
    lake.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def restored(lake):
    lake.table.restore(0)


def cleaned_up(lake):
    """Write a checkpoint and clean up: the log's entries are gone, and the history with them."""
    append(lake)
    log = lake.folder / "_delta_log"
    for path in log.glob("*.json"):
        os.utime(path, (0, 0))
    lake.table.create_checkpoint()
    lake.table.cleanup_metadata()
    assert len(list(log.glob("*.json"))) == 1
    assert all("eos.run-key" not in commit for commit in lake.table.history())


@pytest.mark.parametrize("maintain", [optimized, vacuumed, restored, cleaned_up])
def test_what_is_published_is_found_after_maintenance(delta, maintain):
    """No expiry or rewrite removes the transaction versions."""
    append(delta)
    first = Attempt(delta)
    receipt = first.publish()
    maintain(delta)
    rows = delta.scan().num_rows

    assert Attempt(delta).publish() == receipt
    assert Attempt(delta).publisher.settle(first.claim) == receipt
    assert delta.scan().num_rows == rows


@pytest.mark.parametrize("maintain", [optimized, cleaned_up])
def test_a_bar_outlives_maintenance(delta, maintain):
    """A zombie that sleeps longer than the log is kept publishes nothing."""
    zombie = Attempt(delta)
    assert zombie.publisher.settle(zombie.claim) is None
    append(delta)
    maintain(delta)
    with pytest.raises(RunFenced):
        zombie.publish()
    assert "run/p/1" not in delta.scan()["name"].to_pylist()


@pytest.mark.parametrize("maintain", [optimized, cleaned_up, restored])
def test_maintenance_between_look_and_commit_costs_a_look(delta, maintain):
    """The files stay, and the commit is retried."""
    append(delta)
    append(delta)
    attempt = Attempt(delta)
    attempt.before_commit = lambda: maintain(delta)
    receipt = attempt.publish()
    assert (attempt.commits, receipt.snapshot) == (2, delta.table.version())
    assert delta.scan()["name"].to_pylist().count("run/p/1") == 2


def test_a_vacuum_keeps_the_files_of_a_run_that_has_not_published(delta):
    """They are newer than its retention; without retention they are deleted, as the page says."""
    attempt = Attempt(delta)
    delta.table.vacuum(dry_run=False, full=True)
    attempt.publish()
    assert names(delta) == {"run/p/1": 2}

    other = Attempt(delta, "run/p/2", 20)
    vacuumed(delta)
    (file,) = other.files
    assert not (delta.folder / json.loads(file.data)["path"]).exists()


def wider(lake):
    field = deltalake.Field("more", deltalake.schema.PrimitiveType("long"))
    lake.table.alter.add_columns([field])


def constrained(lake):
    lake.table.alter.add_constraint({"positive": "id > 0"})


def forgetful(lake):
    lake.table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})


def test_a_table_that_has_not_changed_has_the_layout_that_it_had(delta):
    """Whatever the order of a column's metadata."""
    delta.table.alter.set_column_metadata("name", {f"key{i}": "value" for i in range(8)})
    sink = Attempt(delta).sink
    layouts = {sink.load().layout for _ in range(5)}
    assert len(layouts) == 1
    wider(delta)
    assert sink.load().layout not in layouts


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (wider, TableChanged, "changed after the run's data files were written"),
        (constrained, UnknownTable, "check constraint 'positive'"),
        (forgetful, UnknownTable, "setTransactionRetentionDuration='interval 1 days'"),
    ],
)
def test_files_are_published_in_the_table_that_they_were_written_for(delta, change, error, message, between):
    """The table changes before the load, or between load and commit."""
    attempt = Attempt(delta)
    if between:
        attempt.before_commit = lambda: change(delta)
    else:
        change(delta)
    with pytest.raises(error, match=message):
        attempt.publish()
    assert names(delta) == {}


def test_the_library_itself_would_commit_to_a_table_that_nobody_looked_at(delta):
    """Counter-test: with its own retries it does, after another writer's append."""
    version = Attempt(delta).sink.load()
    append(delta)
    table, add = version.table, deltalake.transaction.AddAction("x.parquet", 1, {}, 1, True, "{}")
    commit = {"actions": [add], "mode": "append", "schema": table.schema(), "partition_by": []}

    with pytest.raises(deltalake.exceptions.CommitFailedError):
        table.create_write_transaction(
            **commit, commit_properties=deltalake.CommitProperties(max_commit_retries=0)
        )
    table.create_write_transaction(**commit)
    assert delta.table.version() == 2


def test_a_table_made_again_between_look_and_commit_is_refused_while_its_log_is_shorter(delta):
    """The version that was loaded does not exist in it."""
    append(delta)
    attempt = Attempt(delta)

    def made_again():
        shutil.rmtree(delta.folder / "_delta_log")  # not the run's data file: its loss is detected
        delta.create()

    attempt.before_commit = made_again
    with pytest.raises(Exception, match="recreated"):
        attempt.publish()
    assert names(delta) == {}


def test_a_log_that_cannot_be_read_leaves_the_outcome_open(delta):
    """Neither success nor failure: a retry asks again."""
    attempt = Attempt(delta)
    (delta.folder / "_delta_log" / f"{1:020}.json").write_text("{")
    with pytest.raises(OutcomeUnknown, match="the store did not say what the table holds"):
        attempt.publish()


def test_what_the_store_says_is_shown_without_keys_and_addresses():
    """Libraries include them in their errors."""
    properties = {
        "aws_access_key_id": "AKIA5555",
        "aws_secret_access_key": "geheim55",
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_allow_http": "true",
        "aws_region": "nowhere",
        "max_retries": "0",
    }
    sink = DeltaSink(DeltaTable("s3://lake/t", properties=properties), PROPERTY)
    with pytest.raises(OutcomeUnknown, match="<aws_endpoint_url>") as unknown:
        sink.load()
    assert not [value for value in properties.values() if len(value) > 4 and value in str(unknown.value)]
    assert unknown.value.__cause__ is None


@pytest.mark.parametrize(
    ("uri", "options", "says"),
    [
        ("s3://lake/t", {"timeout": "soon"}, '"soon" as Duration'),
        ("s3://lake/t", {"aws_endpoint_url": "http://127.0.0.1:1"}, "URL scheme is not allowed"),
        ("az://lake/t", {"azure_storage_account_name": "a", "azure_storage_account_key": "!"}, "Access Key"),
        ("gs://lake/t", {"google_service_account_key": "{}"}, "private_key"),
    ],
)
def test_storage_options_that_are_not_valid_are_no_store_that_is_away(uri, options, says):
    """No store was contacted, and a retry would have the same result."""
    options = {"aws_region": "r", "aws_access_key_id": "A", "aws_secret_access_key": "s", **options}
    with pytest.raises(ConfigurationError, match=rf"storage options .*(?s:.*)({says})"):
        DeltaSink(DeltaTable(uri, properties=options), PROPERTY).load()


def test_a_token_is_read_of_the_version_that_was_looked_at(delta):
    """The commit has to refuse what came later."""
    attempt = Attempt(delta)
    version = attempt.sink.load()
    attempt.publish()
    assert "cursor" not in version.published.runs
    assert attempt.sink.load().published.runs["cursor"].token == 10
    with pytest.raises(TableMoved):
        attempt.sink.commit(version, a_bar(version, "cursor"))


def a_bar(version, scope):
    run = PublishedRun("run/p/1", 11, None, lasting=True)
    return TableCommit(scope, version.published.with_run(scope, run))


# -- several processes --


def race(folder, worker, claims, start):
    """Publish every claim, as an attempt of each of several processes that start at once."""
    lake = DeltaLake.at(folder)
    attempts = [Attempt(lake, f"run/p/{claim}", claim * 10, scope=f"s{claim}") for claim in claims]
    start.wait()
    for attempt in attempts[worker:] + attempts[:worker]:
        attempt.publish()
        append(lake, f"foreign-{worker}")


@pytest.mark.process
def test_processes_that_race_for_the_same_claims_publish_each_once(delta):
    """Foreign writers commit between all of them."""
    claims, workers = range(1, 4), 3
    start = processes.Barrier(workers)
    racing = [
        processes.Process(target=race, args=(delta.folder, worker, claims, start))
        for worker in range(workers)
    ]
    for process in racing:
        process.start()
    for process in racing:
        process.join(120)
    assert [process.exitcode for process in racing] == [0] * workers
    assert names(delta) == {
        **{f"run/p/{claim}": 2 for claim in claims},
        **{f"foreign-{worker}": len(claims) for worker in range(workers)},
    }


def publish_and_die(folder, after):
    attempt = Attempt(DeltaLake.at(folder))

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    if after:
        attempt.after_commit = die
    else:
        attempt.before_commit = die
    attempt.publish()


@pytest.mark.process
@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "behind the commit"])
def test_whoever_comes_after_a_process_that_was_killed_knows(delta, after):
    """SIGKILL before or after the log's new version: settled, then published by the next run, once."""
    process = processes.Process(target=publish_and_die, args=(delta.folder, after))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL

    following = Attempt(delta, "run/p/2", 20)
    receipt = following.publisher.settle(Attempt(delta).claim)
    following.publish()
    assert (receipt is not None) is after
    assert names(delta) == {**({"run/p/1": 2} if after else {}), "run/p/2": 2}


# -- what is refused --


VARIANT = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["variantType"],
    "writerFeatures": ["variantType"],
}


READERS_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "variantType",
    "variantType-preview",
}


def field(name, kind, **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([field("a", "long")], {"configuration": {"delta.constraints.c": "a > 0"}}, "check constraint 'c'"),
        ([field("a", "long", **{"delta.invariants": "{}"})], {}, "an invariant in column 'a'"),
        ([field("a", "long", **{"delta.generationExpression": "1"})], {}, "generated column in column 'a'"),
        ([field("a", "long", **{"delta.identity.start": 1})], {}, "an identity column in column 'a'"),
        ([field("a", "long", CURRENT_DEFAULT="1")], {}, "default value in column 'a'"),
        (
            [field("s", {"type": "struct", "fields": [field("a", "long", **{"delta.invariants": "{}"})]})],
            {},
            r"an invariant in column 's\.a'",
        ),
        (
            [field("s", {"type": "array", "elementType": "variant", "containsNull": True})],
            {"protocol": VARIANT},
            "column 's' of type variant",
        ),
        (
            [field("a", "long", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"})],
            {"configuration": {"delta.columnMapping.mode": "name"}},
            "columnMapping",
        ),
        (
            [field("a", "long")],
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 30 days"}},
            "setTransactionRetentionDuration",
        ),
        (
            [field("a", "long")],
            {"configuration": {"delta.targetFileSize": "1.5gb"}},
            "Size='1.5gb', neither",
        ),
        (
            [field("a", "long")],
            {"configuration": {"delta.dataSkippingNumIndexedCols": "all"}},
            "IndexedCols='all', neither",
        ),
        (
            [
                field(
                    "a",
                    {"type": "array", "elementType": "string", "containsNull": True},
                    __CHAR_VARCHAR_TYPE_STRING="array<varchar(3)>",
                )
            ],
            {},
            r"column 'a' as array<varchar\(3\)>",
        ),
        ([field("a", "binary"), field("b", "long")], {"partition_by": ["a"]}, "by 'a' of type binary"),
        ([field("a", "double"), field("b", "long")], {"partition_by": ["a"]}, "by 'a' of type double"),
    ],
)
def test_what_a_run_would_not_honour_is_refused_by_name(tmp_path, fields, options, message):
    """Before any input is read."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    write_log(log, fields, **options)
    with pytest.raises(UnknownTable, match=message):
        DeltaSink(DeltaTable(str(tmp_path)), PROPERTY).load()


def write_log(log, fields, configuration=None, partition_by=(), protocol=None):
    """Write a log's first version by hand: deltalake cannot create a table with some of these."""
    actions = [
        {"protocol": protocol or {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": "0f7a",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": list(partition_by),
                "configuration": configuration or {},
                "createdTime": 1,
            }
        },
    ]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    "feature",
    [
        "rowTracking",
        "identityColumns",
        "icebergCompatV1",
        "domainMetadata",
        "clustering",
        "inCommitTimestamp",
    ],
)
def test_a_feature_that_is_not_written_is_refused_by_name(tmp_path, feature):
    """Also an unknown one; features that an append respects are written."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", feature]}
    write_log(log, [field("a", "long")], protocol=protocol)
    with pytest.raises(UnknownTable, match=f"table feature '{feature}'"):
        DeltaSink(DeltaTable(str(tmp_path)), PROPERTY).load()


@pytest.mark.parametrize("version", [6, 8])
def test_a_writer_version_that_is_not_written_is_refused(tmp_path, version):
    """The library would refuse every commit."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    protocol = {"minReaderVersion": 1, "minWriterVersion": version}
    write_log(log, [field("id", "long")], protocol=protocol)
    with pytest.raises(UnknownTable, match=f"needs writer version {version}"):
        DeltaSink(DeltaTable(str(tmp_path)), PROPERTY).load()


PROTOCOLS_WRITTEN = [
    *({"minReaderVersion": 2, "minWriterVersion": version} for version in WRITER_VERSIONS if version < 7),
    *(
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [feature] if feature in READERS_FEATURES else [],
            "writerFeatures": [feature],
        }
        for feature in sorted(FEATURES)
    ),
]


@pytest.mark.parametrize(
    "protocol",
    PROTOCOLS_WRITTEN,
    ids=lambda protocol: "".join(protocol.get("writerFeatures", ())) or protocol["minWriterVersion"],
)
def test_what_is_not_refused_is_committed(tmp_path, protocol):
    """The library writes every version and feature that the sink accepts."""
    lake = DeltaLake.at(tmp_path)
    log = tmp_path / "_delta_log"
    log.mkdir()
    write_log(log, [field("id", "long"), field("name", "string")], protocol=protocol)
    Attempt(lake).publish()
    assert names(lake) == {"run/p/1": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"configuration": {"delta.appendOnly": "true"}},
        {"configuration": {"delta.enableChangeDataFeed": "true"}},
        {"configuration": {"delta.enableDeletionVectors": "true"}},
    ],
    ids=str,
)
def test_features_that_an_append_keeps_to_are_written(tmp_path, options):
    """Such tables are common."""
    lake = DeltaLake(tmp_path, **options)
    Attempt(lake).publish()
    assert lake.scan()["name"].to_pylist() == ["run/p/1"] * 2


@pytest.mark.parametrize("name", ["allow_unsafe_rename", "MOUNT_ALLOW_UNSAFE_RENAME"])
def test_an_option_that_gives_up_the_compare_and_set_is_refused(name, monkeypatch):
    """Of the connection, or of the environment, which deltalake reads, too."""
    with pytest.raises(ConfigurationError, match=f"{name.lower()}='true'.*remove it"):
        DeltaSink(DeltaTable("/lake/t", properties={name: "true"}), PROPERTY)
    monkeypatch.setenv(name.upper(), "true")
    with pytest.raises(ConfigurationError, match=f"{name.lower()}='true'"):
        DeltaSink(DeltaTable("/lake/t"), PROPERTY)
    DeltaSink(DeltaTable("/lake/t", properties={name: "false"}), PROPERTY)


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_CONDITIONAL_PUT", "disabled"), ("aws_s3_locking_provider", "dynamodb")]
)
def test_an_option_for_commits_without_a_condition_is_refused(name, value, monkeypatch):
    """delta-rs commits nothing with the first, and ignores the lock that other writers rely on."""
    with pytest.raises(ConfigurationError, match=f"{name.lower()}='{value}'.*no put-if-absent"):
        DeltaSink(DeltaTable("s3a://lake/t", properties={name: value}), PROPERTY)
    monkeypatch.setenv(name.upper(), value)
    with pytest.raises(ConfigurationError, match=f"{name.lower()}='{value}'"):
        DeltaSink(DeltaTable("s3://lake/t"), PROPERTY)
    DeltaSink(DeltaTable("/lake/t"), PROPERTY)
    DeltaSink(DeltaTable("s3://lake/t", properties={name: "etag"}), PROPERTY)


def test_an_endpoint_without_a_scheme_is_refused(monkeypatch):
    """delta-rs panics, which no retry fixes; a table of files has no endpoint."""
    with pytest.raises(ConfigurationError, match=r"aws_endpoint_url, of connection or.*is not a URL"):
        DeltaSink(DeltaTable("s3://lake/t", properties={"AWS_ENDPOINT_URL": "localhost:9000"}), PROPERTY)
    monkeypatch.setenv("AWS_ENDPOINT", "localhost")
    with pytest.raises(ConfigurationError, match="aws_endpoint, of"):
        DeltaSink(DeltaTable("s3://lake/t"), PROPERTY)
    DeltaSink(DeltaTable("/lake/t"), PROPERTY)
    DeltaSink(DeltaTable("s3://lake/t", properties={"aws_endpoint": "http://localhost:9000"}), PROPERTY)


@pytest.mark.parametrize("name", ["allow_unsafe_rename", "MOUNT_ALLOW_UNSAFE_RENAME"])
def test_with_such_an_option_commits_that_succeeded_are_lost(tmp_path, monkeypatch, name):
    """Counter-test: of several racing commits, more than one succeeds on the same version."""
    monkeypatch.setattr(DeltaSink, "_refuse_options", lambda _: None)
    for number in range(50):
        lake = DeltaLake(tmp_path / str(number))
        start = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            succeeded = sum(pool.map(partial(bar_at_once, lake, {name: "true"}, start), range(4)))
        if succeeded > lake.table.version():
            return
    pytest.fail("no commit was lost in 50 races")


def bar_at_once(lake, options, start, scope):
    """Commit on the version that all have loaded; return whether that succeeded."""
    sink = DeltaSink(DeltaTable(str(lake.folder), properties=options), PROPERTY)
    version = sink.load()
    start.wait()
    try:
        sink.commit(version, a_bar(version, str(scope)))
    except TableMoved:
        return False
    return True


def test_a_table_that_is_not_there_is_named(tmp_path):
    """The error has the folder."""
    sink = DeltaSink(DeltaTable(f"{tmp_path}/nowhere"), PROPERTY)
    with pytest.raises(UnknownTable, match=r"delta:.*/nowhere does not exist: create the table"):
        sink.load()


def test_where_transaction_versions_expire_a_retry_would_publish_twice(tmp_path, monkeypatch):
    """Counter-test to the refusal of ``delta.setTransactionRetentionDuration``."""
    monkeypatch.setattr(delta_sink, "refuse_unwritable", lambda *_: None)
    monkeypatch.setattr(delta_sink.time, "time", lambda: 1.0)  # long ago
    retention = {"delta.setTransactionRetentionDuration": "interval 30 days"}
    lake = DeltaLake(tmp_path, configuration=retention)

    Attempt(lake).publish()
    Attempt(lake).publish()

    assert names(lake) == {"run/p/1": 4}
