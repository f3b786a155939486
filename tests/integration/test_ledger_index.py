"""The ledger's index on a real broker: runs and a command write it; if it is unusable, nothing breaks."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from airflow_eos.broker.ledger_log.topic import KafkaLedger
from airflow_eos.broker.shared_connections import Link
from airflow_eos.broker.transactions import KafkaTransactions
from airflow_eos.cli.main import main
from airflow_eos.engine import index_keeper
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.engine.run import RunAttempt
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.ledger_index import IndexRoot
from airflow_eos.model.spec import LedgerSettings, RunSpec
from airflow_eos.operations.queries import ledger_records
from airflow_eos.operations.upkeep import index_ledger
from tests.support.brokers import unique

SECRET = "a ledger's secret of some length".replace(" ", "-")


@pytest.fixture
def spec(embedded_kafka, kafka_topic):
    """A run without input: it commits without Spark."""
    name = unique("indexed")
    return RunSpec(
        kafka=embedded_kafka.client_config(),
        pipeline=name,
        run_id="r0",
        source_topics=(kafka_topic(),),
        group_id=name,
        prefix="eos",
        ledger=LedgerSettings(topic=unique("ledger"), partitions=1, replication_factor=1, create=True),
    )


@pytest.fixture
def always(monkeypatch):
    """Every run writes the index."""
    monkeypatch.setattr(index_keeper, "TAIL_BYTES", 1)


def run(spec, run_id="r0", **changes):
    return RunAttempt(None, replace(spec, run_id=run_id, **changes), lambda df: df).execute()


def root_of(spec):
    with ControlPlane(spec) as control:
        latest = control.ledger.index_root(0)
    return None if latest is None else latest[1]


def described(spec):
    with ControlPlane(spec) as control:
        return control.ledger.describe()


def views(spec, names, prefixes=()):
    """Return what a look-up finds with the index, and without it."""
    with ControlPlane(spec) as control:
        by_index = control.ledger.view(0, names, prefixes)
        assert control.ledger.tails()[0] > 0
    with Link(spec.kafka) as link:
        plain = KafkaLedger(link, spec.ledger, replace(keys.OWN_KEYS, index=None))
        return by_index, plain.view(0, names, prefixes)


@pytest.mark.parametrize("key", ["", SECRET], ids=["unsigned", "signed"])
def test_runs_index_the_ledger_and_are_found_by_it(spec, always, key):
    """Each of several runs is found again, the cursor moves on, and a reader without the index agrees."""
    spec = replace(spec, ledger=replace(spec.ledger, key=key))
    records = [run(spec, f"r{n}") for n in range(4)]
    root = root_of(spec)
    assert root is not None
    assert root.leaves
    names = [keys.run_record_key(record.run_key) for record in records]
    names += [keys.cursor_key(spec.group_id), keys.LEDGER_IDENTITY_KEY, "run:absent"]
    by_index, whole = views(spec, names)
    assert by_index.committed == whole.committed
    assert set(by_index.committed) == {*names} - {"run:absent"}
    assert [run(spec, record.run_id).found for record in records] == [True] * 4
    prefix = keys.run_record_key(keys.run_key_prefixes(spec.pipeline)[0])
    by_index, whole = views(spec, [], (prefix,))
    assert by_index.committed == whole.committed
    assert len(by_index.committed) == 4


def test_two_processes_index_at_the_same_time(spec, monkeypatch):
    """The later one takes the id while the first one writes; the first one begins again, behind it."""
    run(spec)
    original = index_keeper._write_leaves

    def overtaken(*arguments):
        monkeypatch.setattr(index_keeper, "_write_leaves", original)
        assert index_ledger(spec.deployment)[0].leaves == 1
        return original(*arguments)

    monkeypatch.setattr(index_keeper, "_write_leaves", overtaken)
    assert index_ledger(spec.deployment)[0].leaves == 1


def test_an_index_is_not_listed(spec, always):
    """The ledger lists the records of runs only."""
    run(spec)
    listed = ledger_records(spec.deployment)
    assert sorted(record.key.partition(":")[0] for record in listed) == ["cursor", "ledger", "run"]


def test_without_a_key_an_index_says_nothing(spec, always):
    """In a ledger with a key, an unsigned index does not count."""
    run(spec)
    assert root_of(spec) is not None
    assert root_of(replace(spec, ledger=replace(spec.ledger, key=SECRET))) is None


def write_as_a_stranger(spec):
    lie = IndexRoot(described(spec).topic_id, through=1_000).to_json((1, 1))
    stranger = Producer(dict(spec.kafka))
    stranger.produce(spec.ledger.topic, key=keys.INDEX.root, value=lie, partition=0)
    assert stranger.flush(30) == 0


def test_an_index_that_a_stranger_wrote_stops_nobody(spec):
    """It does not count: if no run wrote an index, there is none."""
    run(spec, "r0")
    write_as_a_stranger(spec)
    assert root_of(spec) is None
    assert not run(spec, "r1").found
    assert run(spec, "r0").found


@pytest.mark.parametrize("key", ["", SECRET], ids=["unsigned", "signed"])
def test_an_index_that_a_stranger_wrote_hides_none_of_ours(spec, always, key):
    """The indexes of runs count, before it and after it."""
    keyed = replace(spec, ledger=replace(spec.ledger, key=key))
    run(keyed, "r0")
    write_as_a_stranger(keyed)
    assert root_of(keyed) is not None
    assert not run(keyed, "r1").found
    assert run(keyed, "r0").found
    if key:  # nor does an index of a client without the key
        with ControlPlane(spec) as control:
            assert control.index_keeper("eos").extend(0) is not None
    assert run(keyed, "r1").found
    assert not run(keyed, "r2").found


def test_a_young_ledger_has_no_index(spec):
    """An index pays off from about a thousand runs on."""
    run(spec)
    assert root_of(spec) is None


def test_who_dies_between_leaves_and_root_leaves_nothing_behind(spec, always, monkeypatch, caplog):
    """The run is committed and logs why the ledger was not indexed; the next run indexes it."""
    with monkeypatch.context() as dying:
        dying.setattr(index_keeper.IndexKeeper, "_write_root", lambda *_: 1 / 0)
        assert not run(spec, "r0").found
    assert "was not indexed; look-ups read more of it: division by zero" in caplog.text
    assert root_of(spec) is None
    run(spec, "r1")
    assert root_of(spec) is not None
    assert run(spec, "r0").found
    assert run(spec, "r1").found


def test_a_principal_that_may_not_write_it_runs_all_the_same(spec, always, monkeypatch, caplog):
    """Its runs succeed, and log it."""
    fence = KafkaTransactions.fence

    def refused(self, transactional_id):
        if keys.id_kind(transactional_id) == "ledger-index":
            raise AuthorizationFailed(f"{transactional_id}: no Write")
        return fence(self, transactional_id)

    monkeypatch.setattr(KafkaTransactions, "fence", refused)
    with caplog.at_level(logging.WARNING, logger="airflow_eos"):
        assert not run(spec).found
    assert "was not indexed" in caplog.text


def test_an_index_is_made_by_command(spec, capsys):
    """A second call changes no look-up."""
    first = run(spec)
    flags = ["--bootstrap-servers", spec.kafka["bootstrap.servers"], "--ledger-topic", spec.ledger.topic]
    for _ in range(2):
        assert main(["index", *flags, "--prefix", "eos"]) == 0
        assert "indexed up to offset" in capsys.readouterr().out
    root = root_of(spec)
    assert len(root.leaves) == 1
    assert run(spec, first.run_id).found


def test_two_that_index_at_once_do_no_harm(spec, always):
    """The fenced one writes no root; the resulting index is complete."""
    records = [run(spec, f"r{n}") for n in range(2)]
    with ControlPlane(spec) as control, ControlPlane(spec) as other:
        first = control.index_keeper("eos")
        write_root = first._write_root

        def overtaken(*args):
            assert other.index_keeper("eos").extend(0) is not None
            return write_root(*args)

        first._write_root = overtaken
        run(spec, "r2")
        assert first.extend(0) is None
    assert [run(spec, record.run_id).found for record in records] == [True, True]
    assert run(spec, "r2").found
