"""The cost and the contents of an import of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import airflow_eos_testing as package
from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.exceptions import EmbeddedKafkaError
from airflow_eos_testing.kafka import main

HEAVY = ("airflow", "confluent_kafka", "kafka", "pyarrow", "pyspark", "numpy")


def test_the_pytest_plugin_is_light():
    """Every pytest session of a user loads the plugin, which imports none of the heavy packages."""
    code = f"import sys, airflow_eos_testing.fixtures; print([m for m in {HEAVY!r} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_imported():
    """The lazy names of __all__ resolve, and an unknown one is an AttributeError."""
    assert sorted(package.__all__) == package.__all__
    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'EmbeddedKafca'"):
        package.EmbeddedKafca  # noqa: B018


def test_two_brokers_are_refused():
    """A quorum needs an odd number; only 1 and 3 are supported."""
    with pytest.raises(ConfigurationError, match="brokers=2"):
        EmbeddedKafka(brokers=2)


def test_a_cluster_that_is_not_running_says_so():
    """Its use outside of the with block is an error with the remedy, not an empty address."""
    with pytest.raises(EmbeddedKafkaError, match="use it as a context manager"):
        EmbeddedKafka().bootstrap_servers  # noqa: B018


@pytest.mark.parametrize("arguments", [["--topic", "a:b"], ["--config", "novalue"], ["--brokers", "2"]])
def test_the_command_refuses_bad_arguments(arguments, capsys):
    """A wrong argument ends the command before anything is started."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    assert arguments[0] in capsys.readouterr().err
