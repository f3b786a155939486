"""The command lines of embedded brokers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_eos_testing.broker import Broker
from airflow_eos_testing.launch import QUICK_START, Launcher


@pytest.fixture
def launcher(tmp_path):
    """A launcher whose class-data archive does not exist yet."""
    return Launcher(tmp_path, Path("/java"), (Path("/kafka.jar"),), tmp_path / "classes.jsa")


def test_a_broker_starts_quickly_unless_it_is_told_otherwise(launcher):
    """The JVM's options are replaced as a whole."""
    own = replace(launcher, jvm_options=("-Xmx1g",))
    assert launcher.command("kafka.Kafka")[1 : 1 + len(QUICK_START)] == list(QUICK_START)
    assert own.command("kafka.Kafka")[:2] == ["/java", "-Xmx1g"]
    assert not set(QUICK_START) & set(own.command("kafka.Kafka"))


def test_an_archive_is_made_with_the_usual_options_only(launcher):
    """Brokers with other options would otherwise share an archive that does not fit them."""
    own = replace(launcher, jvm_options=("-Xmx1g",))
    assert any("ArchiveClassesAtExit" in argument for argument in launcher.command("kafka.Kafka", dump=True))
    assert not any("ArchiveClassesAtExit" in argument for argument in own.command("kafka.Kafka", dump=True))


def test_only_warnings_of_a_log_are_shown_where_a_test_fails(tmp_path):
    """With their stack traces; the sixty lines before them do not matter to a test."""
    log = tmp_path / "broker-1.log"
    stack = "java.io.IOException: full\n\tat org.apache.kafka.Log.append(Log.java:1)"
    log.write_text(
        "2026-11-24 03:39:09,000 INFO Kafka Server started (kafka.server)\n"
        f"2026-11-24 03:39:10,000 ERROR Error while appending (kafka.log)\n{stack}\n"
        "2026-11-24 03:39:11,000 INFO WARN is a word here (kafka.log)\n"
    )
    broker = Broker(1, ["java"], "127.0.0.1:1", log, tmp_path)
    _, *shown = broker.log_tail(60, warnings_only=True).splitlines()
    assert shown == ["2026-11-24 03:39:10,000 ERROR Error while appending (kafka.log)", *stack.splitlines()]
    assert broker.log_tail(1, warnings_only=True).endswith("(none)")
