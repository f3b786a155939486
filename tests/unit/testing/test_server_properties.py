"""The broker's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing.cluster import DEFAULT_VERSION, EmbeddedKafka
from airflow_eos_testing.properties import (
    NodePorts,
    default_transaction_version,
    formatting_features,
    server_properties,
    version_settings,
)

ONE = {1: NodePorts(client=11001, controller=11002)}
THREE = {node: NodePorts(client=11000 + node, controller=12000 + node) for node in (1, 2, 3)}


def parse(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("nodes", "replicas", "min_isr"), [(ONE, "1", "1"), (THREE, "3", "2")])
def test_internal_topics_survive_one_broker_of_three(nodes, replicas, min_isr):
    """Offsets and transaction state have 3 replicas and min ISR 2 with three brokers, 1 and 1 with one."""
    settings = parse(server_properties(1, nodes, Path("/data")))

    assert settings["offsets.topic.replication.factor"] == replicas
    assert settings["transaction.state.log.replication.factor"] == replicas
    assert settings["transaction.state.log.min.isr"] == min_isr
    assert settings["default.replication.factor"] == replicas
    assert settings["min.insync.replicas"] == min_isr


def test_every_node_knows_all_controllers():
    """The quorum is the same text in each file, the listeners are each node's own."""
    files = [parse(server_properties(node, THREE, Path(f"/data-{node}"))) for node in THREE]

    assert {settings["controller.quorum.voters"] for settings in files} == {
        "1@127.0.0.1:12001,2@127.0.0.1:12002,3@127.0.0.1:12003"
    }
    assert [settings["advertised.listeners"] for settings in files] == [
        f"CLIENT://127.0.0.1:{11000 + node}" for node in THREE
    ]


def test_the_callers_settings_win():
    """Later overrides beat earlier ones and the defaults."""
    overrides = ({"num.partitions": "2"}, {"num.partitions": "3", "auto.create.topics.enable": "true"})

    settings = parse(server_properties(1, ONE, Path("/data"), overrides=overrides))

    assert settings["num.partitions"] == "3"
    assert settings["auto.create.topics.enable"] == "true"


def test_backslashes_and_line_ends_survive_the_properties_format():
    """A PEM text or a Windows path reaches the broker unchanged."""
    text = server_properties(1, ONE, Path("/data"), overrides=({"a.pem": "one\ntwo", "a.path": "c:\\x"},))

    assert "a.pem=one\\n\\\ntwo\n" in text
    assert "a.path=c:\\\\x\n" in text


def test_3_9_gets_the_flag_that_transaction_version_1_needs():
    """Only 3.9 with a transaction version above 0 enables unstable features."""
    assert version_settings("3.9.2", 1) == {"unstable.feature.versions.enable": "true"}
    assert version_settings("3.9.2", 0) == {}
    assert "unstable.feature.versions.enable" not in version_settings("4.3.1", 2)


@pytest.mark.parametrize(
    ("version", "level", "features"),
    [
        ("3.6.2", 0, {}),
        ("3.7.2", 0, {}),
        ("3.9.2", 1, {"transaction.version": 1}),
        ("4.3.1", 2, {"transaction.version": 2}),
        ("4.10.0", 2, {"transaction.version": 2}),
    ],
)
def test_a_cluster_is_formatted_with_the_features_of_its_version(version, level, features):
    """Before 3.8 the tool refuses ``--feature``, and there is no transaction.version."""
    assert default_transaction_version(version) == level
    assert formatting_features(version, level) == features


def test_a_feature_that_a_version_lacks_is_refused():
    """The error has the remedy."""
    with pytest.raises(ConfigurationError, match=r"transaction_version=1: Kafka 3\.7\.2 has no such feature"):
        EmbeddedKafka(version="3.7.2", transaction_version=1)


def test_the_environment_chooses_the_version_where_none_is_named(monkeypatch):
    """A whole test run can thus use another one."""
    monkeypatch.setenv("EOS_KAFKA_VERSION", "4.4.0")
    assert EmbeddedKafka().version == "4.4.0"
    assert EmbeddedKafka(version="3.9.2").version == "3.9.2"
    monkeypatch.setenv("EOS_KAFKA_VERSION", "")
    assert EmbeddedKafka().version == DEFAULT_VERSION
