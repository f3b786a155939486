"""The cache of class-data archives."""

from __future__ import annotations

import os

from airflow_eos_testing import class_data


def test_other_jars_mean_another_archive(monkeypatch, tmp_path):
    """A changed jar, or another Java, never maps an archive that was written for something else."""
    monkeypatch.setenv("AIRFLOW_EOS_CACHE", str(tmp_path))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"one")
    java, other_java = tmp_path / "java-17", tmp_path / "java-21"

    before = class_data.archive_path("kafka-4.3.1", java, [jar])
    assert class_data.archive_path("kafka-4.3.1", java, [jar]) == before
    assert class_data.archive_path("kafka-4.3.1", other_java, [jar]) != before
    jar.write_bytes(b"longer")
    assert class_data.archive_path("kafka-4.3.1", java, [jar]) != before


def test_old_archives_of_the_same_version_are_dropped(tmp_path):
    """At most the four newest archives of a version stay; other versions are not affected."""
    folder = tmp_path / "class-data"
    dumped = tmp_path / "classes.jsa"
    dumped.write_bytes(b"archive")
    other = folder / "kafka-3.9.2-x.jsa"
    class_data.install(dumped, other)
    for number in range(6):
        archive = folder / f"kafka-4.3.1-{number}.jsa"
        class_data.install(dumped, archive)
        os.utime(archive, (number, number))

    assert sorted(path.name for path in folder.iterdir()) == [
        "kafka-3.9.2-x.jsa",
        *(f"kafka-4.3.1-{number}.jsa" for number in (2, 3, 4, 5)),
    ]
