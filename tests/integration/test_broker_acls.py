"""A secured broker: which permissions the control plane needs, and which errors name a missing one."""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from argparse import Namespace
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.cli import commands
from airflow_eos.cli.status import status
from airflow_eos.engine import control_plane
from airflow_eos.exceptions import AuthorizationFailed, ConfigurationError, NotYetVisible, RunFailed
from airflow_eos.ledger import keys
from airflow_eos.model.kafka import CommittedOffset, EndTxnAnswer
from airflow_eos.model.ranges import Explicit, OffsetRange
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operations.doctor import DoctorOptions, examine
from airflow_eos.operations.queries import create_ledger
from airflow_eos.operations.verification import verify_output
from airflow_eos.operators.retriable import is_final
from airflow_eos.run.states import State
from airflow_eos.ui.history import RunHistory
from airflow_eos_testing import EmbeddedKafka
from tests.support.brokers import assert_hidden, make_transactions, message, tp, unique
from tests.support.cases import rest_in_chaos
from tests.support.local_runs import Paused, Pipeline

PAGE = Path(__file__).parents[2] / "docs" / "page.md"
LEDGER = "kept-runs"  # a name that occurs in no message about ledgers


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka(security="SASL_PLAINTEXT", acls=True) as running:
        running.create_topic(LEDGER, config={"cleanup.policy": "compact"})
        running.create_topic("source")
        yield running


@pytest.fixture
def user(kafka):
    """Client settings of a new user; ``user.grant`` allows operations."""
    return User(kafka, unique("user"))


class User:
    def __init__(self, kafka, name):
        self.name = name
        self.config = kafka.user(name)
        self._kafka = kafka

    def grant(self, *operations, **resource):
        self._kafka.grant(self.name, *operations, **resource)

    def revoke(self, *operations, **resource):
        self._kafka.revoke(self.name, *operations, **resource)


@pytest.fixture
def config(user):
    return user.config


@pytest.fixture
def ledger(link):
    return KafkaLedger(link, LedgerSettings(topic=LEDGER))


def granted_everything(user, group, transactional_id):
    """The permissions a run of the control plane needs, besides those of reading and writing data."""
    user.grant("READ", "WRITE", "DESCRIBE", topic=LEDGER)
    user.grant("READ", "DESCRIBE", topic="source")
    user.grant("DESCRIBE", topic="__consumer_offsets")
    user.grant("READ", "DESCRIBE", group=group)
    user.grant("WRITE", "DESCRIBE", transactional_id=transactional_id)


def test_a_user_with_few_permissions_can_run_a_whole_transaction(user, cluster, ledger, transactions):
    """Ledger, source, group, __consumer_offsets and transactional id: nothing on the cluster."""
    group, name = unique("group"), unique("work")
    granted_everything(user, group, name)
    source = tp("source")
    session = transactions.fence(name)
    session.begin()
    session.stage(group, {source: CommittedOffset(1, "meta")}, [message("run", "{}")])
    assert cluster.describe_transaction(name).partitions == {
        tp(LEDGER),
        cluster.group_offsets_partition(group),
    }
    assert len(cluster.describe_producers([tp(LEDGER)])[tp(LEDGER)]) >= 1
    session.commit()
    session.close()
    assert cluster.committed(group, [source]) == {source: CommittedOffset(1, "meta")}
    assert cluster.describe_group(group).members == 0
    assert transactions.abort(session.identity) is EndTxnAnswer.NOTHING_OPEN
    assert cluster.features().transaction_max_timeout_ms is None
    assert cluster.features().partition_verification is None


def test_a_run_without_a_grant_for_the_witness_of_its_ledger_goes_on(kafka, user, cluster):
    """The run uses that id for nothing else; with the grant, it is remembered."""
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish(["a"])
    kafka.create_topic(pipeline.ledger, partitions=2, config={"cleanup.policy": "compact"})
    spec = pipeline.spec
    user.grant("READ", "WRITE", "DESCRIBE", topic=pipeline.ledger)
    user.grant("READ", "DESCRIBE", topic=pipeline.source)
    user.grant("READ", "WRITE", "DESCRIBE", topic=pipeline.sink)
    user.grant("DESCRIBE", topic="__consumer_offsets")
    user.grant("READ", "DESCRIBE", group=spec.group_id)
    for name in (
        keys.transactional_id(spec),
        keys.ledger_transactional_id(spec.prefix, pipeline.ledger),
    ):
        user.grant("WRITE", "DESCRIBE", transactional_id=name)
    assert pipeline.run("r1", kafka=user.config).records_read == 1
    witness = keys.ledger_witness_id(spec.prefix, pipeline.ledger)
    user.grant("WRITE", "DESCRIBE", transactional_id=witness)
    assert cluster.describe_transaction(witness) is None
    pipeline.run("r2", kafka=user.config)
    assert cluster.describe_transaction(witness) is not None


GRANTS = {
    "Read on the source": ("topic", "source", "READ"),
    "Write on the sink": ("topic", "sink", "WRITE"),
    "Read on the sink": ("topic", "sink", "READ"),
    "Write on the ledger": ("topic", "ledger", "WRITE"),
    "Read on the ledger": ("topic", "ledger", "READ"),
    "Describe on __consumer_offsets": ("topic", "__consumer_offsets", "DESCRIBE"),
    "Read on the group": ("group", "group", "READ"),
    "Write on the transactional id": ("transactional_id", "id", "WRITE"),
}


# Given ranges without the grants whose names differ: the group of their offsets, and their id.
@pytest.mark.parametrize(
    ("taken", "ranges"),
    rest_in_chaos(
        len(GRANTS) + 4,
        [
            *product([None, *GRANTS], ["cursor"]),
            *product([None, "Read on the group", "Write on the transactional id"], ["given"]),
            *product([grant for grant in GRANTS if GRANTS[grant][0] == "topic"], ["given"]),
        ],
    ),
)
def test_each_grant_that_is_missing_is_found_before_anything_is_written(kafka, user, caplog, taken, ranges):
    """With all grants a run commits; without any one of them, it names it, and neither reads nor writes."""
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish(["a"])
    create_ledger(pipeline.spec.deployment)
    given = Explicit((OffsetRange(pipeline.source, 0, 0, 1),))
    changes = {} if ranges == "cursor" else {"ranges": given}
    spec = pipeline.changed("r1", kafka=user.config, **changes)
    names = {
        "source": pipeline.source,
        "sink": pipeline.sink,
        "ledger": pipeline.ledger,
        "group": keys.offsets_group(spec),
        "id": keys.transactional_id(spec),
    }
    for grant, (kind, name, operation) in GRANTS.items():
        if grant != taken:
            user.grant(operation, **{kind: names.get(name, name)})
    states = []
    if taken is None:
        assert pipeline.run("r1", kafka=user.config, **changes).records_written == 1
        return
    with pytest.raises(AuthorizationFailed) as refused:
        pipeline.run("r1", kafka=user.config, on_state=states.append, **changes)
    kind, name, _ = GRANTS[taken]
    assert names.get(name, name) in str(refused.value)
    assert State.PLANNED not in states
    assert pipeline.output("read_uncommitted") == []


def permitted_pipeline(kafka, user):
    """Return a pipeline with one record and all grants of its run, and the names of the grants' resources."""
    pipeline = Pipeline(kafka, partitions=1)
    pipeline.publish(["a"])
    create_ledger(pipeline.spec.deployment)
    spec = pipeline.spec
    names = {**vars(pipeline), "group": spec.group_id, "id": keys.transactional_id(spec)}
    for kind, name, operation in GRANTS.values():
        user.grant(operation, **{kind: names.get(name, name)})
    return pipeline, names


@pytest.mark.parametrize(
    ("taken", "state"),
    rest_in_chaos(
        2,
        [
            ("Read on the source", State.PLANNED),
            ("Write on the ledger", State.WRITTEN),
            ("Read on the sink", State.STAGED),
            ("Write on the sink", State.SEALED),
            ("Read on the group", State.WRITTEN),
        ],
    ),
)
def test_a_grant_that_is_taken_while_a_run_works_is_asked_for_by_its_retry(kafka, user, taken, state):
    """It may be back by then, as when tools replace the rules; otherwise the next try fails for good."""
    pipeline, names = permitted_pipeline(kafka, user)
    kind, name, operation = GRANTS[taken]
    resource = {kind: names.get(name, name)}
    with pytest.raises(RunFailed, match=rf"{resource[kind]}.*taken since: a retry") as failed:
        pipeline.run(
            "r1",
            kafka=user.config,
            on_state=lambda entered: user.revoke(operation, **resource) if entered is state else None,
        )
    assert not is_final(failed.value)
    with pytest.raises(AuthorizationFailed, match=resource[kind]):
        pipeline.run("r1", kafka=user.config, try_number=2)
    user.grant(operation, **resource)
    assert pipeline.run("r1", kafka=user.config, try_number=3).records_written == 1
    assert pipeline.output() == ["a"]


@pytest.mark.parametrize("taken", ["sink", "ledger"])
def test_a_grant_that_is_taken_after_the_commit_does_not_deny_it(kafka, user, taken):
    """Whether readers see the output can no longer be checked: the error says that it is committed."""
    pipeline, names = permitted_pipeline(kafka, user)
    paused = Paused(pipeline, State.PROVEN, kafka=user.config)
    user.revoke("READ", topic=names[taken])
    if taken == "sink":
        user.revoke("WRITE", topic=pipeline.sink)
    paused.resume()
    assert isinstance(paused.error, NotYetVisible)
    assert "r1 is committed, but whether readers see it cannot be asked: " in str(paused.error)
    user.grant("READ", "WRITE", topic=names[taken])
    assert pipeline.run("r1", kafka=user.config).found
    assert pipeline.output() == ["a"]


@pytest.mark.parametrize("taken", [None, *GRANTS])
def test_the_doctor_finds_each_grant_that_is_missing(kafka, user, taken):
    """Before a first run; for the transactional id, it checks one that a run could have."""
    group, prefix = unique("group"), unique("eos")
    ledger, sink = unique("ledger"), unique("sink")
    for topic in (ledger, sink):
        kafka.create_topic(topic, config={"cleanup.policy": "compact"} if topic == ledger else None)
    create_ledger(Deployment(kafka.client_config(), LedgerSettings(topic=ledger, partitions=1), prefix))
    names = {"source": "source", "sink": sink, "ledger": ledger, "group": group}
    for grant, (kind, name, operation) in GRANTS.items():
        if grant == taken:
            continue
        if kind == "transactional_id":
            user.grant(operation, transactional_id=keys.ids_prefix(prefix), prefixed=True)
        else:
            user.grant(operation, **{kind: names.get(name, name)})
    options = DoctorOptions(
        Deployment(user.config, LedgerSettings(topic=ledger), prefix),
        group=group,
        sources=["source"],
        sinks=[sink],
    )
    failed = [check for check in examine(options) if check.status == "fail"]
    if taken is None:
        assert failed == []
        return
    kind, name, _ = GRANTS[taken]
    named = prefix if kind == "transactional_id" else names.get(name, name)
    assert any(named in f"{check.name} {check.found} {check.advice}" for check in failed), failed


def test_a_limit_that_may_not_be_read_stops_no_command(kafka, user, monkeypatch):
    """A command has no such setting and takes a shorter time-out; the doctor reports the limit of runs."""
    monkeypatch.setattr(control_plane, "TRANSACTION_TIMEOUT", dt.timedelta(hours=2))
    settings, prefix = LedgerSettings(unique("ledger"), partitions=1), unique("eos")
    user.grant("READ", "WRITE", "CREATE", topic=settings.topic)
    user.grant("WRITE", transactional_id=keys.ids_prefix(prefix), prefixed=True)
    deployment = Deployment(user.config, settings, prefix)
    assert create_ledger(deployment).partitions == 1
    options = DoctorOptions(deployment, transaction_timeout=dt.timedelta(hours=2))
    checks = {check.name: (check.status, check.found) for check in examine(options)}
    assert checks["time-outs"][0] == "unknown"
    assert checks["transactional id"][0] == "ok"
    assert checks["transaction time-out"] == ("fail", "brokers refuse 2 hours, and take 15 minutes")


def documented_grants():
    """Return what docs/page.md says that the page's principal needs: resources as named there, operations."""
    table = re.findall(r"^   \| (.+?) \| (\w+(?:, \w+)*) \|$", PAGE.read_text(), re.MULTILINE)
    return [
        (resource, operations.upper().split(", ")) for resource, operations in table if resource != "resource"
    ]


def test_the_page_can_ask_all_it_asks_with_what_is_documented(kafka, user, cluster):
    """It sees no settings; nothing is fenced or written. Without Read on a sink the page says so."""
    pipeline = Pipeline(kafka, prefix=unique("eos"))
    pipeline.publish(["a", "b"])
    record = pipeline.run("r1")
    prefix = keys.ids_prefix(pipeline.spec.prefix)
    resources = {
        "the ledger topic": {"topic": pipeline.ledger},
        "source topics": {"topic": pipeline.source},
        "sink topics": {"topic": pipeline.sink},
        "transactional ids": {"transactional_id": prefix, "prefixed": True},
        "cluster": {"cluster": True},
    }
    granted = documented_grants()
    assert len(granted) == len(resources)
    for label, operations in granted:
        (resource,) = (resource for name, resource in resources.items() if label.startswith(name))
        user.grant(*operations, **resource)
    deployment = replace(pipeline.spec.deployment, kafka=user.config)
    with RunHistory(deployment) as history:
        history.refresh()
        (shown,) = history.pipelines.values()
        assert history.coverage(shown).is_whole
        assert history.open_transactions() == {}
        checks = history.health(sources=[pipeline.source], sinks=[pipeline.sink])
        statuses = {check.name: check.status for check in checks}
        unseen = {"partition verification", "time-outs", "expiry of ids", "ledger settings"}
        assert {name for name, status in statuses.items() if status == "unknown"} == unseen
        assert {status for name, status in statuses.items() if name not in unseen} == {"ok"}
        assert {"ledger", "ledger records", "ledger topic replicas", "transactions left open"} < set(statuses)
        assert {finding.outcome for finding in verify_output(user.config, record)} == {"ok"}
        user.revoke("READ", topic=pipeline.sink)
        blind = {check.name: check for check in history.health(sources=(), sinks=[pipeline.sink])}
        assert blind["transactions left open"].status == "unknown"
        assert pipeline.sink in blind["transactions left open"].found
        with pytest.raises(AuthorizationFailed, match=pipeline.sink):
            verify_output(user.config, record)
        user.revoke("DESCRIBE", topic=pipeline.source)
        for unseen in (history.coverage(shown), *history.summaries([shown])):
            assert (unseen.unseen, unseen.unread, unseen.is_whole) == ((pipeline.source,), -1, False)
    doctor = keys.doctor_transactional_id(pipeline.spec.prefix)
    with Link(kafka.client_config()) as link:
        seen = KafkaCluster(link)
        assert seen.describe_transaction(doctor) is None


def test_topics_that_may_not_be_read_are_not_searched_for_hanging_transactions(kafka, user):
    """Repair and doctor report that, instead of finding nothing; with Read they search the topic."""
    pipeline = Pipeline(kafka)
    pipeline.publish(["a"])
    pipeline.run("r1")
    user.grant("READ", topic=pipeline.ledger)
    user.grant("READ", topic="__consumer_offsets")
    deployment = replace(pipeline.spec.deployment, kafka=user.config)
    options = Namespace(topic=[], assume=None, yes=False)

    def looks():
        outcome = commands.repair(deployment, options)
        checks = {check.name: check for check in examine(DoctorOptions(deployment, sinks=[pipeline.sink]))}
        hanging = checks["hanging transactions"]
        return outcome.code, outcome.data["unseen"], hanging.status, pipeline.sink in hanging.found

    assert looks() == (3, [pipeline.sink], "unknown", True)
    user.grant("READ", topic=pipeline.sink)
    assert looks() == (0, [], "ok", True)


def test_status_shows_the_groups_that_it_may_see(kafka, user):
    """A group that it may not describe is unknown, and exceeds every limit; the others are shown."""
    pipeline = Pipeline(kafka)
    pipeline.publish(["a"])
    hidden, spec = f"{pipeline.spec.group_id}-2", pipeline.spec
    pipeline.run("r1")
    pipeline.run("r2", group_id=hidden, pipeline=f"{spec.pipeline}-2")
    user.grant("READ", topic=pipeline.ledger)
    user.grant("DESCRIBE", topic=pipeline.source)
    user.grant("DESCRIBE", group=spec.group_id)
    user.grant("DESCRIBE", transactional_id=keys.ids_prefix(spec.prefix), prefixed=True)
    deployment = replace(spec.deployment, kafka=user.config)
    options = Namespace(group=[], run=[], max_lag=0, max_open=0, max_gaps=None, send_metrics=False)
    outcome = status(deployment, options)
    cursors = outcome.data["cursors"]
    assert (outcome.code, cursors[spec.group_id]["lag"], cursors[hidden]["lag"]) == (3, 0, None)
    assert cursors[hidden]["unknown"].startswith("AuthorizationFailed: ")
    passed = [(row["group"], row["limit"]) for row in outcome.data["exceeded"]]
    assert passed == [(hidden, "max-lag"), (hidden, "max-open")]


def test_the_doctor_names_the_group_of_runs_without_a_cursor(user):
    """Intervals commit to a separate group."""
    group = unique("group")
    granted_everything(user, group, unique("work"))
    options = DoctorOptions(
        Deployment(user.config, LedgerSettings(topic=LEDGER), "test"), group=group, sources=[], sinks=[]
    )
    checks = {check.name: check for check in examine(options)}
    assert checks[f"group {group}.runs"].status == "warn"
    user.grant("READ", group=f"{group}.runs")
    assert f"group {group}.runs" not in {check.name for check in examine(options)}


def test_settings_are_read_with_describe_configs_on_the_cluster(user, cluster):
    """With this permission, partition verification can be checked."""
    user.grant("DESCRIBE_CONFIGS", cluster=True)
    assert cluster.features().partition_verification is True
    assert cluster.features().transaction_max_timeout_ms == 900_000


def test_a_transactional_id_without_write_is_named(transactions):
    """Fencing needs Write on the transactional id."""
    name = unique("work")
    with pytest.raises(AuthorizationFailed, match=rf"{name}.*transactional id"):
        transactions.fence(name)


def test_a_group_without_describe_cannot_be_checked(cluster):
    """Without Describe, it is unknown whether the group has members."""
    with pytest.raises(AuthorizationFailed, match="grant Describe on group 'somebody'"):
        cluster.describe_group("somebody")
    with pytest.raises(AuthorizationFailed, match="somebody"):
        cluster.committed("somebody", [tp("source")])


def test_a_group_without_read_cannot_get_offsets(user, transactions):
    """Staging needs Read on the group; the error names the group and the transactional id."""
    name = unique("work")
    user.grant("WRITE", "DESCRIBE", topic=LEDGER)
    user.grant("WRITE", "DESCRIBE", transactional_id=name)
    session = transactions.fence(name)
    session.begin()
    with pytest.raises(AuthorizationFailed, match=rf"{name}.*somebody.*consumer group"):
        session.stage("somebody", {tp("source"): CommittedOffset(1)}, [message("run", "{}")])
    session.close()


def test_a_ledger_without_write_cannot_be_staged_to(user, transactions):
    """Staging needs Write on the ledger topic."""
    name = unique("work")
    user.grant("DESCRIBE", topic=LEDGER)
    user.grant("WRITE", "DESCRIBE", transactional_id=name)
    session = transactions.fence(name)
    session.begin()
    with pytest.raises(AuthorizationFailed, match=f"{LEDGER}.*grant this principal Write on the topic"):
        session.stage("unused", {}, [message("run", "{}")])
    session.close()


def test_a_topic_without_describe_is_named(cluster, ledger):
    """This holds for topics and for the ledger; the error contains the name."""
    with pytest.raises(AuthorizationFailed, match="source"):
        cluster.describe_topics(["source"])
    with pytest.raises(AuthorizationFailed, match=LEDGER):
        ledger.describe()


def test_partitions_without_write_cannot_be_added(user, transactions):
    """AddPartitionsToTxn needs Write on every topic."""
    name = unique("work")
    user.grant("WRITE", "DESCRIBE", transactional_id=name)
    session = transactions.fence(name)
    session.begin()
    with pytest.raises(AuthorizationFailed, match="source-0"):
        session.add_partitions([tp("source")])
    session.close()


def test_a_ledger_needs_create(user):
    """Creating the ledger without the permission names it, and creates nothing."""
    name = unique("forbidden")
    with (
        Link(user.config) as link,
        pytest.raises(AuthorizationFailed, match=f"{name}.*grant this principal Create"),
    ):
        KafkaLedger(link, LedgerSettings(topic=name, partitions=1)).create()


def test_describe_on_consumer_offsets_is_asked_for(user, cluster):
    """The proof compares the group's partition, so its topic must be visible."""
    group = unique("group")
    user.grant("DESCRIBE", group=group)
    with pytest.raises(AuthorizationFailed, match="__consumer_offsets"):
        cluster.group_offsets_partition(group)


def test_doctor_names_every_missing_permission(user):
    """One by one, with what to grant; what it may not read is unknown, not wrong."""
    group = unique("group")
    options = DoctorOptions(
        Deployment(user.config, LedgerSettings(topic=LEDGER), unique("eos")),
        group=group,
        sources=["source"],
        sinks=[LEDGER],
    )
    failed = {check.name: check for check in examine(options) if check.status == "fail"}
    assert set(failed) == {
        "transactional id",
        "ledger",
        "topic source",
        f"topic {LEDGER}",
        f"group {group}",
    }
    prefix = options.deployment.prefix
    cursor, ids_prefix = keys.cursor_transactional_id(prefix, group), keys.ids_prefix(prefix)
    assert f"'{cursor}', or on transactional ids '{ids_prefix}', with" in failed["transactional id"].advice
    assert f"grant Describe, Read on group '{group}'" in failed[f"group {group}"].advice
    assert "grant Describe" in failed["topic source"].advice

    user.grant("DESCRIBE", topic=LEDGER)
    user.grant("DESCRIBE", topic="source")
    failed = [check for check in examine(options) if check.status == "fail" and "topic" in check.name]
    assert [(check.name, check.advice) for check in failed] == [
        ("ledger topic", f"grant Read, Write on topic '{LEDGER}'"),
        ("topic source", "grant Read on topic 'source'"),
        (f"topic {LEDGER}", f"grant Write on topic '{LEDGER}'"),
        (f"topic {LEDGER}", "grant Read: the proof before a commit needs it"),
    ]

    granted_everything(user, group, unique("work"))
    user.grant(
        "WRITE", "DESCRIBE", transactional_id=keys.ids_prefix(options.deployment.prefix), prefixed=True
    )
    checks = {check.name: check.status for check in examine(options)}
    assert "fail" not in checks.values()
    assert {name for name, status in checks.items() if status == "unknown"} == {
        "partition verification",
        "time-outs",
        "expiry of ids",
        "ledger settings",
        "topic source retention",
        f"topic {LEDGER} retention",
    }
    user.grant("DESCRIBE_CONFIGS", cluster=True)
    for topic in (LEDGER, "source"):
        user.grant("DESCRIBE_CONFIGS", topic=topic)
    checks = {check.name: check.status for check in examine(options)}
    assert "unknown" not in checks.values()


def test_doctor_takes_the_literal_id_of_a_cursor_for_enough(kafka, user):
    """It checks the real id, whose open transaction goes on; grants for other ids are a warning."""
    group, prefix = unique("group"), unique("eos")
    name = keys.cursor_transactional_id(prefix, group)
    granted_everything(user, group, name)
    user.grant("WRITE", topic="source")
    settings = LedgerSettings(topic=unique("made"), partitions=1)
    create_ledger(Deployment(kafka.client_config(), settings, prefix))
    user.grant("READ", "WRITE", "DESCRIBE", topic=settings.topic)
    options = DoctorOptions(Deployment(user.config, settings, prefix), group=group)
    owner = Producer({**user.config, "transactional.id": name})
    owner.init_transactions(30)
    owner.begin_transaction()
    owner.produce("source", key="k", value="v")
    owner.flush(30)
    checks = {check.name: check for check in examine(options)}
    id_check = checks["transactional id"]
    assert (id_check.status, id_check.found) == ("warn", f"{name} may be used, others of the prefix may not")
    assert f"'{prefix}.', with pattern type PREFIXED" in id_check.advice
    assert [check for check in checks.values() if check.status == "fail"] == []
    owner.commit_transaction(30)


def test_refused_credentials_end_soon_and_hide_the_password(user, ledger, caplog, monkeypatch):
    """librdkafka would retry for ever; the error is raised at once; neither it nor the log has secrets."""
    # The usual interval of checks on librdkafka: test_a_refused_certificate_is_named_at_once[none].
    monkeypatch.setattr("airflow_eos.broker.producer._INIT_SLICE_SECONDS", 0.5)
    caplog.set_level(logging.DEBUG)
    config = {**user.config, "sasl.password": "not-the-password"}
    transactions = make_transactions(config, ledger)
    started = time.monotonic()
    with pytest.raises(ConfigurationError) as raised:
        transactions.fence(unique("work"))
    assert time.monotonic() - started < 20
    assert_hidden("not-the-password", raised.value, caplog)
    with Link(config) as link:
        cluster = KafkaCluster(link)
        for ask in (
            lambda: cluster.describe_group("somebody"),
            lambda: cluster.describe_topics(["source"]),
        ):
            with pytest.raises(ConfigurationError, match=r"credentials|security settings") as raised:
                ask()
            assert_hidden("not-the-password", raised.value, caplog)
