"""Fetching the broker's jars, with a fake Java that behaves like Ivy."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos_testing import jars
from airflow_eos_testing.exceptions import EmbeddedKafkaError

# Ivy's part in a fetch: fill the folder of "-retrieve", count the calls, take a moment.
IVY = """#!/bin/sh
echo call >> "{calls}"
printf '%s\\n' "$@" > "{calls}.arguments"
while [ $# -gt 0 ]; do
  [ "$1" = "-retrieve" ] && folder=$(dirname "$2")
  shift
done
mkdir -p "$folder"
sleep 0.3
touch "$folder/scala-library-2.13.18.jar"
{last}
"""


class FakeIvy:
    """A ``java`` that acts as Ivy and records its calls."""

    def __init__(self, folder: Path, last: str) -> None:
        self._calls = folder / "calls"
        self.executable = folder / "java"
        self.executable.write_text(IVY.format(calls=self._calls, last=last))
        self.executable.chmod(0o755)

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().splitlines())

    @property
    def arguments(self) -> list[str]:
        return Path(f"{self._calls}.arguments").read_text().splitlines()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW_EOS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ivy(monkeypatch, tmp_path):
    fake = FakeIvy(tmp_path, 'touch "$folder/kafka_2.13-4.3.1.jar"')
    monkeypatch.setattr(jars, "find_java", lambda: fake.executable)
    return fake


def test_jars_are_fetched_once(cache, ivy):
    """A second use takes the folder as it is."""
    first = jars.fetch_jars("4.3.1")
    second = jars.fetch_jars("4.3.1")

    assert first == second == cache / "kafka-4.3.1"
    assert (first / "kafka_2.13-4.3.1.jar").exists()
    assert ivy.calls == 1


def test_concurrent_first_fetches_fetch_once(cache, ivy):
    """The second process waits for the first and finds the folder complete."""
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(jars.fetch_jars("4.3.1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert folders == [cache / "kafka-4.3.1"] * 4
    assert ivy.calls == 1


def test_a_failed_fetch_leaves_no_folder_and_tells_what_ivy_said(cache, monkeypatch, tmp_path):
    """A partial download is never taken for the jars: the next use tries again."""
    broken = FakeIvy(tmp_path, "echo 'UNRESOLVED DEPENDENCIES'; exit 1")
    monkeypatch.setattr(jars, "find_java", lambda: broken.executable)

    with pytest.raises(EmbeddedKafkaError, match=r"(?s)Fetching Kafka 4.3.1 failed.*UNRESOLVED DEPENDENCIES"):
        jars.fetch_jars("4.3.1")

    assert [entry.name for entry in cache.iterdir()] == ["kafka-4.3.1.lock"]


def test_the_remains_of_a_killed_fetch_are_removed_by_the_next_one(cache, ivy):
    """The downloads of a process that died do not stay in the cache for ever."""
    remains = cache / ".kafka-4.3.1-abc" / "ivy"
    remains.mkdir(parents=True)

    jars.fetch_jars("4.3.1")

    assert sorted(entry.name for entry in cache.iterdir()) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


def test_ivy_reports_success_without_the_broker_jar(cache, monkeypatch, tmp_path):
    """An exit code of 0 is not trusted if the broker's own jar is missing."""
    empty = FakeIvy(tmp_path, "exit 0")
    monkeypatch.setattr(jars, "find_java", lambda: empty.executable)

    with pytest.raises(EmbeddedKafkaError, match=r"Fetching Kafka 4.3.1 failed"):
        jars.fetch_jars("4.3.1")

    assert not (cache / "kafka-4.3.1").exists()


def test_a_mirror_is_used_through_ivy_settings(cache, ivy, monkeypatch):
    """Ivy gets a site's settings file."""
    monkeypatch.setenv("AIRFLOW_EOS_IVY_SETTINGS", "/etc/site/ivysettings.xml")

    jars.fetch_jars("4.3.1")

    position = ivy.arguments.index("-settings")
    assert ivy.arguments[position + 1] == "/etc/site/ivysettings.xml"


def test_ivy_gets_a_cache_of_its_own(cache, ivy):
    """Ivy's default cache, which Spark sessions use at the same time, is not touched."""
    jars.fetch_jars("4.3.1")

    own = Path(ivy.arguments[ivy.arguments.index("-cache") + 1])
    assert own.is_relative_to(cache)
    assert not own.exists()


def test_a_folder_without_the_broker_jar_is_named(cache):
    """The error for a damaged cache names the folder to remove."""
    (cache / "kafka-4.3.1").mkdir(parents=True)

    with pytest.raises(EmbeddedKafkaError, match=r"holds no kafka_2.13-4.3.1.jar: remove the folder"):
        jars.fetch_jars("4.3.1")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AIRFLOW_EOS_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/airflow-eos"),
        ({}, str(Path.home() / ".cache" / "airflow-eos")),
    ],
)
def test_the_cache_folder_follows_the_environment(environment, expected, monkeypatch):
    """Its own variable comes first, then XDG, then the home folder."""
    for name in ("AIRFLOW_EOS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert jars.cache_root() == Path(expected)


def test_pyspark_jars_are_found_whatever_their_version():
    """Ivy and a complete logging backend come with the installed PySpark."""
    assert jars.pyspark_jar("ivy-*.jar").exists()
    assert [jar.name.split("-2.")[0] for jar in jars.logging_jars()] == [
        "slf4j-api",
        "log4j-slf4j2-impl",
        "log4j-api",
        "log4j-core",
    ]


def test_a_client_only_pyspark_is_refused_with_the_remedy():
    """A PySpark without jars is a clear error."""
    with pytest.raises(ConfigurationError, match="install the full pyspark distribution"):
        jars.pyspark_jar("no-such-thing-*.jar")


def test_yarn_is_fetched_in_the_version_of_pysparks_client(cache, monkeypatch, tmp_path):
    """The daemons use PySpark's own Hadoop jars, and those that it lacks."""
    fake = FakeIvy(tmp_path, 'touch "$folder/hadoop-client-minicluster-3.4.9.jar"')
    monkeypatch.setattr(jars, "find_java", lambda: fake.executable)
    monkeypatch.setattr(jars, "pyspark_jar", lambda pattern: Path(pattern.replace("*", "3.4.9")))

    classpath = jars.yarn_classpath()

    assert classpath[-2] == cache / "yarn-3.4.9" / "hadoop-client-minicluster-3.4.9.jar"
    assert Path("hadoop-client-runtime-3.4.9.jar") in classpath
    assert jars.yarn_classpath() == classpath
    assert fake.calls == 1


def test_the_catalog_of_iceberg_is_fetched_beside_pysparks_jars(cache, monkeypatch, tmp_path):
    """Two jars of one name and version are told apart by their classifier."""
    name = f"iceberg-open-api-{jars.ICEBERG_VERSION}-test-fixtures.jar"
    fake = FakeIvy(tmp_path, f'touch "$folder/{name}"')
    monkeypatch.setattr(jars, "find_java", lambda: fake.executable)
    monkeypatch.setattr(jars, "pyspark_jar", lambda pattern: Path(pattern.replace("*", "3.4.9")))

    classpath = jars.iceberg_classpath()

    assert cache / f"iceberg-rest-{jars.ICEBERG_VERSION}" / name in classpath
    assert Path("avro-13.4.9.jar") in classpath
    assert fake.arguments[-1].endswith("[artifact]-[revision](-[classifier]).[ext]")
