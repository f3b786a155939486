"""The broker's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos_testing.properties import NodePorts, server_properties, version_settings

ONE = {1: NodePorts(client=11001, controller=11002)}
THREE = {node: NodePorts(client=11000 + node, controller=12000 + node) for node in (1, 2, 3)}


def parse(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("nodes", "replicas", "min_isr"), [(ONE, "1", "1"), (THREE, "3", "2")])
def test_internal_topics_survive_one_broker_of_three(nodes, replicas, min_isr):
    """Offsets and transaction state have 3 replicas and min ISR 2 with 3 brokers, one of each with one."""
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
    """A PEM text or a Windows path reaches the broker as it was given."""
    text = server_properties(1, ONE, Path("/data"), overrides=({"a.pem": "one\ntwo", "a.path": "c:\\x"},))

    assert "a.pem=one\\n\\\ntwo\n" in text
    assert "a.path=c:\\\\x\n" in text


def test_3_9_gets_the_flag_that_transaction_version_1_needs():
    """Only 3.9 with a transaction version above 0 enables unstable features."""
    assert version_settings("3.9.2", 1) == {"unstable.feature.versions.enable": "true"}
    assert version_settings("3.9.2", 0) == {}
    assert "unstable.feature.versions.enable" not in version_settings("4.3.1", 2)
