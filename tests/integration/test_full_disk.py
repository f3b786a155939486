"""Executors whose disk is full: neither the function nor a record is blamed."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager

import pytest

from airflow_eos.engine.run import RunAttempt
from airflow_eos.exceptions import RunFailed
from airflow_eos_testing import read_topic
from tests.support.local_runs import Pipeline
from tests.support.spark_sessions import new_session

FILES = 2_000


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A separate file system, with room for a limited number of files."""
    folder = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size=64m,nr_inodes={FILES}", "tmpfs"]
    if os.geteuid() != 0 or subprocess.run(["mount", *options, folder], check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def spark(disk):
    session = new_session("classic", **{"spark.local.dir": str(disk)})
    yield session
    session.stop()


@contextmanager
def without_room(disk):
    """Take all free bytes."""
    room = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(room.f_bavail * room.f_bsize))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def without_files(disk):
    """Take all but a few free inodes."""
    fillers = [disk / f"filler-{i}" for i in range(os.statvfs(disk).f_ffree - 3)]
    for filler in fillers:
        filler.touch()
    try:
        yield
    finally:
        for filler in fillers:
            filler.unlink()


def shuffled(frame):
    return frame.repartition(3).select("key", "value")


@pytest.mark.parametrize("fill", [without_room, without_files])
def test_a_full_disk_is_neither_the_functions_nor_a_records_fault(embedded_kafka, spark, disk, fill):
    """No record becomes a dead letter; once there is room again, the next try writes all of them."""
    pipeline = Pipeline(embedded_kafka)
    letters = embedded_kafka.create_topic(f"dead-{pipeline.source}")
    fed = [f"v{i}" for i in range(40)]
    pipeline.publish(fed)
    with fill(disk), pytest.raises(RunFailed, match=r"seal stage: .*No space left on device"):
        RunAttempt(spark, pipeline.changed("r1", dead_letter_topic=letters), shuffled).execute()
    assert pipeline.output("read_uncommitted") == []
    retry = pipeline.changed("r1", dead_letter_topic=letters, try_number=2)
    assert RunAttempt(spark, retry, shuffled).execute().dead_letters == 0
    assert sorted(pipeline.output()) == sorted(fed)
    assert read_topic(embedded_kafka.client_config(), letters) == []
