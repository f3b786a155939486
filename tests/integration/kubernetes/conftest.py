"""A local Kubernetes cluster, and tasks that submit to it."""

from __future__ import annotations

import tests.support.yarn_tasks  # noqa: F401 - first of all that imports Airflow

import os  # isort: skip
import uuid  # isort: skip
from pathlib import Path  # isort: skip
from typing import Any  # isort: skip

import pytest  # isort: skip

from airflow_eos_testing.kubernetes.api_server import KubernetesApi, can_be_built  # isort: skip
from airflow_eos_testing.kubernetes.kubelet import Kubelet, image  # isort: skip
from tests.support.kubernetes_tasks import KubernetesTask  # isort: skip
from tests.support.yarn_runs import COPY, RECORDS, SECRET, STOPS_HALF_WAY  # isort: skip

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def api():
    if not can_be_built():
        pytest.skip("needs Go, to build the API server")
    with KubernetesApi() as started:
        yield started


@pytest.fixture(scope="session")
def kubelet(api):
    packages = os.pathsep.join(map(str, (ROOT, ROOT / "testing")))
    with Kubelet(api, {**image(), "PYTHONPATH": packages}) as started:
        yield started


@pytest.fixture
def uploads(tmp_path):
    """A folder for the files of applications: the storage that drivers read them from."""
    folder = tmp_path / "uploads"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def task(api, kubelet, broker, uploads, tmp_path, monkeypatch):
    """Return a function that describes a copying task."""

    def described(code: str = COPY, **settings: Any) -> KubernetesTask:
        source, sink = broker.numbered("src", 2, RECORDS // 2), broker.topic("out", 4)
        (tmp_path / "copy_app.py").write_text(code)
        key = f"{SECRET}-of-the-ledger"
        ledger = {"topic": f"ledger-{uuid.uuid4().hex[:8]}", "partitions": 1, "key": key}
        kafka = {**broker.config, "sasl.username": "me", "sasl.password": SECRET}
        described = {"topics": [source], "group_id": f"group-{sink}", "ledger": ledger, "sink_topic": sink}
        copying = KubernetesTask.on_kubernetes(api, uploads, tmp_path, kafka, **{**described, **settings})
        for name in copying.environment:  # the operator sets them
            monkeypatch.setenv(name, os.environ.get(name, ""))
        return copying

    return described


@pytest.fixture
def half_way(task, tmp_path):
    """Return a function that describes a task that stops, until released, with half of its output written."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()

    def described(**settings: Any) -> KubernetesTask:
        return task(STOPS_HALF_WAY.format(folder=str(meeting)), **settings)

    described.meeting = meeting
    return described
