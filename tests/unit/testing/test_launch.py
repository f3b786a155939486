"""The command lines of embedded brokers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_eos_testing.launch import QUICK_START, Launcher


@pytest.fixture
def launcher(tmp_path):
    """One whose class-data archive does not exist yet."""
    return Launcher(tmp_path, Path("/java"), (Path("/kafka.jar"),), tmp_path / "classes.jsa")


def test_a_broker_starts_quickly_unless_it_is_told_otherwise(launcher):
    """The options of the JVM are replaced as a whole."""
    own = replace(launcher, jvm_options=("-Xmx1g",))
    assert launcher.command("kafka.Kafka")[1 : 1 + len(QUICK_START)] == list(QUICK_START)
    assert own.command("kafka.Kafka")[:2] == ["/java", "-Xmx1g"]
    assert not set(QUICK_START) & set(own.command("kafka.Kafka"))


def test_an_archive_is_made_with_the_usual_options_only(launcher):
    """One made with other options would be shared by brokers whom it does not fit."""
    own = replace(launcher, jvm_options=("-Xmx1g",))
    assert any("ArchiveClassesAtExit" in one for one in launcher.command("kafka.Kafka", dump=True))
    assert not any("ArchiveClassesAtExit" in one for one in own.command("kafka.Kafka", dump=True))
