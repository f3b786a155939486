"""A local YARN cluster, and tasks that submit to it."""

from __future__ import annotations

import tests.support.yarn_tasks  # noqa: F401 - first of all that imports Airflow

import os  # isort: skip
import uuid  # isort: skip
from typing import Any  # isort: skip

import pytest  # isort: skip

from airflow_eos_testing.faults.yarn_cluster import YarnCluster  # isort: skip
from tests.support.yarn_runs import COPY, RECORDS, SECRET, STOPS_HALF_WAY  # isort: skip
from tests.support.yarn_tasks import YarnTask  # isort: skip


@pytest.fixture(scope="module")
def yarn():
    with YarnCluster() as running:
        yield running


@pytest.fixture(scope="module")
def guarded():
    """A YARN in which only an application's user may end it."""
    with YarnCluster(1, acls=True) as running:
        yield running


@pytest.fixture
def task(request, broker, tmp_path, monkeypatch):
    """Return a function that describes a copying task on a cluster, the module's unless another is given."""

    def described(code: str = COPY, cluster: YarnCluster | None = None, **settings: Any) -> YarnTask:
        source, sink = broker.numbered("src", 2, RECORDS // 2), broker.topic("out", 4)
        (tmp_path / "copy_app.py").write_text(code)
        ledger = {
            "topic": f"ledger-{uuid.uuid4().hex[:8]}",
            "partitions": 1,
            "key": f"{SECRET}-of-the-ledger",
        }
        kafka = {**broker.config, "sasl.username": "me", "sasl.password": SECRET}
        copying = YarnTask.on(
            cluster or request.getfixturevalue("yarn"),
            tmp_path,
            kafka,
            topics=[source],
            group_id=f"group-{sink}",
            ledger=ledger,
            **{"sink_topic": sink, **settings},
        )
        copying.operator()  # sets the environment, which monkeypatch restores
        return copying

    for name in ("AIRFLOW_CONN_KAFKA_DEFAULT", "AIRFLOW_CONN_SPARK_YARN", "HADOOP_CONF_DIR", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return described


@pytest.fixture
def half_way(task, tmp_path):
    """Return a function that describes a task that stops, until released, with half of its output written."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    def described(cluster: YarnCluster | None = None, **settings: Any) -> YarnTask:
        code = STOPS_HALF_WAY.format(folder=str(meeting))
        return task(code, cluster, **settings)

    described.meeting = meeting
    return described
